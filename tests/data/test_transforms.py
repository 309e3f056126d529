"""Transforms: frames, exact coherent shifts, and changes of brightness that stay inside of the brain."""

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.transforms import Compose

from scripts.data.transforms import RandBrainIntensityd, RandPairShiftd, load_transforms, pair_transforms, shift_volume
from scripts.synthetic.subjects import volume_affine
from tests.data.files import brain, labels, write

SIZE = (24, 26, 28)


def pair() -> dict:
    """A marked voxel in the middle of each volume; the label marks the same one."""
    item = {key: torch.zeros(1, *SIZE) for key in ("fixed", "moving")}
    item |= {key: torch.zeros(1, *SIZE, dtype=torch.int32) for key in ("fixed_label", "moving_label")}
    for volume in item.values():
        volume[0, 12, 13, 14] = 1
    return item


def position(volume: torch.Tensor) -> np.ndarray:
    return np.argwhere(volume[0].numpy())[0]


class TestFrame:
    def test_crop_and_pad_about_the_center(self, tmp_path):
        path = write(tmp_path / "i.nii.gz", brain(0, (12, 12, 12)), volume_affine((12, 12, 12), 1.0))
        item = load_transforms(roi_size=(8, 12, 16))({"image": path})
        assert item["image"].shape == (1, 8, 12, 16)
        assert np.array_equal(item["image"][0, :, :, 2:14], brain(0, (12, 12, 12))[2:10])
        assert np.allclose(item["image"].affine, volume_affine((8, 12, 16), 1.0))

    def test_half_the_resolution_is_the_mean_of_eight_voxels(self, tmp_path):
        image = brain(0, (12, 16, 20))
        affine = volume_affine(image.shape, 1.0)
        item = {"image": write(tmp_path / "i.nii.gz", image, affine)}
        item["label"] = write(tmp_path / "l.nii.gz", labels(0, image.shape), affine)
        coarse = load_transforms(pixdim=2.0)(item)
        assert coarse["image"].shape == coarse["label"].shape == (1, 6, 8, 10)
        assert np.allclose(coarse["image"][0], image.reshape(6, 2, 8, 2, 10, 2).mean((1, 3, 5)), atol=1e-5)
        assert np.allclose(coarse["image"].affine, volume_affine((6, 8, 10), 2.0))

    def test_from_a_config(self, tmp_path):
        parser = ConfigParser(
            {
                "load": {"_target_": "scripts.data.transforms.load_transforms", "roi_size": [8, 8, 8]},
                "pair": {"_target_": "scripts.data.transforms.pair_transforms", "max_shared": 4, "noise_prob": 0.5},
            }
        )
        assert isinstance(parser.get_parsed_content("load"), Compose)
        assert len(parser.get_parsed_content("pair").transforms) == 2


class TestShift:
    @pytest.mark.parametrize("shift", [(0, 0, 0), (3, -2, 1), (-5, 0, 4), (24, 0, 0), (-99, 0, 0)])
    def test_shift_is_exact_with_zeros_coming_in(self, shift):
        volume = torch.rand(1, *SIZE) + 0.1
        expected = torch.zeros_like(volume)
        for index in np.ndindex(*SIZE):
            source = tuple(i - s for i, s in zip(index, shift, strict=True))
            if all(0 <= i < size for i, size in zip(source, SIZE, strict=True)):
                expected[(0, *index)] = volume[(0, *source)]
        assert torch.equal(shift_volume(volume, shift), expected)

    def test_image_and_label_move_together_and_roles_by_little(self):
        transform = RandPairShiftd(max_shared=8, max_independent=2).set_random_state(seed=0)
        shared, apart = [], []
        for _ in range(200):
            item = transform(pair())
            fixed, moving = position(item["fixed"]), position(item["moving"])
            assert (fixed == position(item["fixed_label"])).all()
            assert (moving == position(item["moving_label"])).all()
            shared.append(fixed - (12, 13, 14))
            apart.append(fixed - moving)
        assert np.abs(shared).max() == 10  # 8 + 2
        assert np.abs(apart).max() == 4  # 2 - (-2)

    @pytest.mark.parametrize("limits", [(8, 0), (0, 2)])
    def test_either_part_alone(self, limits):
        transform = RandPairShiftd(max_shared=limits[0], max_independent=limits[1]).set_random_state(seed=1)
        items = [transform(pair()) for _ in range(50)]
        gaps = [np.abs(position(item["fixed"]) - position(item["moving"])).max() for item in items]
        moves = [np.abs(position(item["fixed"]) - (12, 13, 14)).max() for item in items]
        assert max(gaps) == 2 * limits[1]
        assert max(moves) == sum(limits)

    def test_same_seed_same_shift_and_input_is_kept(self):
        first, second = (RandPairShiftd().set_random_state(seed=7)(pair()) for _ in range(2))
        assert all(torch.equal(first[key], second[key]) for key in first)
        item = pair()
        RandPairShiftd().set_random_state(seed=7)(item)
        assert all(torch.equal(item[key], pair()[key]) for key in item)

    def test_labels_are_optional(self):
        images = {key: value for key, value in pair().items() if "label" not in key}
        assert set(RandPairShiftd()(images)) == {"fixed", "moving"}

    def test_negative_is_refused(self):
        with pytest.raises(ValueError, match="must not be negative"):
            RandPairShiftd(max_shared=-1)


class TestIntensity:
    ALL = (1.0, 1.0, 1.0, 1.0)

    def images(self) -> dict:
        return {"fixed": torch.as_tensor(brain(0, SIZE))[None], "moving": torch.as_tensor(brain(0, SIZE))[None]}

    @pytest.mark.parametrize("which", [*range(4), None])
    def test_zeros_stay_zeros_and_range_is_kept(self, which):
        probabilities = [float(which in (None, k)) for k in range(4)]
        item = RandBrainIntensityd(*probabilities).set_random_state(seed=0)(self.images())
        before = self.images()["fixed"]
        for key in ("fixed", "moving"):
            assert (item[key][before == 0] == 0).all()
            assert 0 <= item[key].min() <= item[key].max() <= 1
            assert not torch.allclose(item[key], before, atol=1e-3)
        assert not torch.allclose(item["fixed"], item["moving"], atol=1e-4)  # each on its own

    def test_off_by_default(self):
        untouched = RandBrainIntensityd(0.0, 0.0, 0.0, 0.0)(self.images())
        assert torch.equal(untouched["fixed"], self.images()["fixed"])
        assert [type(step).__name__ for step in pair_transforms().transforms] == ["RandPairShiftd"]
        assert pair_transforms(0, 0).transforms == ()

    def test_same_seed_same_change(self):
        first, second = (
            pair_transforms(8, 2, *self.ALL).set_random_state(seed=3)({**pair(), **self.images()}) for _ in range(2)
        )
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_window_is_cut_out_of_both_images_and_labels_at_the_same_place():
    volume = torch.arange(12**3).reshape(1, 12, 12, 12)
    keys = ("fixed", "moving", "fixed_label", "moving_label")
    crop = pair_transforms(max_shared=0, max_independent=0, crop_size=[4, 5, 6])
    crop.set_random_state(0)
    corners = set()
    for _ in range(8):
        item = crop({key: volume.float() for key in keys})
        first = item["fixed"]
        assert first.shape == (1, 4, 5, 6)
        corner = int(first[0, 0, 0, 0])
        corners.add(corner)
        x, y, z = corner // 144, corner // 12 % 12, corner % 12
        for key in keys:
            assert torch.equal(item[key], volume[:, x : x + 4, y : y + 5, z : z + 6].float())
    assert len(corners) > 4
