from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Engine
from monai.data import MetaTensor, decollate_batch, list_data_collate

from scripts.engines.handlers.uncertainty_map import UncertaintyMap, displacement_std
from scripts.registration.warp import warp_labels

SHAPE = (6, 7, 8)
# Oblique, with edges of 1, 2 and 3 mm, one axis turned around.
AFFINE = np.eye(4)
AFFINE[:3, :3] = np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, -1]]) @ np.diag([1.0, 2.0, 3.0])
AFFINE[:3, 3] = [-10, 20, 5]


def make_item(number, file=None):
    rng = np.random.default_rng(number)
    affine = AFFINE.copy()
    affine[0, 3] += number
    meta = {} if file is None else {"filename_or_obj": file}
    image = torch.tensor(rng.uniform(-1, 1, (1, *SHAPE)).clip(0), dtype=torch.float32)
    item = {
        "fixed": MetaTensor(image, affine=affine, meta=meta),
        "moving_label": MetaTensor(torch.tensor(rng.choice([0, 1, 2, 7], (1, *SHAPE))), affine=affine),
    }
    return item if file else item | {"fixed_name": f"a/{number}", "moving_name": "b"}


def make_samples(pairs, count=5):
    generator = torch.Generator().manual_seed(1)
    return 10 + 0.7 * torch.randn(pairs, count, 3, *SHAPE, generator=generator)


def run(handler, batch, output):
    engine = Engine(lambda engine, batch: output)
    handler.attach(engine)
    engine.run([batch])
    return engine.state.metrics


def reference(samples):
    """[K, 3, X, Y, Z] in voxels to the standard deviation in mm, by numpy."""
    in_mm = np.moveaxis(samples.double().numpy(), 1, -1) @ AFFINE[:3, :3].T
    return np.sqrt(in_mm.var(axis=0, ddof=1).sum(-1))


@pytest.mark.parametrize("listed", [False, True])
def test_a_map_for_each_pair(listed, tmp_path):
    items, samples = [make_item(0), make_item(1)], make_samples(2)
    batch, output = list_data_collate(items), {"ddf": samples}
    if listed:
        batch, output = decollate_batch(batch), decollate_batch(output)
    metrics = run(UncertaintyMap(tmp_path / "maps", csv_path=tmp_path / "std.csv"), batch, output)
    means = []
    for k, item in enumerate(items):
        image = nib.load(tmp_path / f"maps/a_{k}__b_std.nii.gz")
        assert image.get_data_dtype() == np.float32
        np.testing.assert_allclose(image.affine, item["fixed"].affine, atol=1e-6)
        std = np.asarray(image.dataobj)
        np.testing.assert_allclose(std, reference(samples[k]), rtol=1e-4)
        means.append(std[item["fixed"][0].numpy() > 0].mean())
    assert metrics == {"std_mm": pytest.approx(np.mean(means), rel=1e-5)}
    assert len(list((tmp_path / "maps").iterdir())) == 2
    header, *rows = (tmp_path / "std.csv").read_text().splitlines()
    assert header == "fixed,moving,std_mm"
    assert [float(row.split(",")[2]) for row in rows] == pytest.approx(means, rel=1e-5)


def test_label_maps(tmp_path):
    samples = make_samples(1)
    samples -= 10
    item = make_item(0)
    labels = item["moving_label"].as_tensor()
    run(UncertaintyMap(tmp_path, label_maps=True, labels=[1, 2]), list_data_collate([item]), {"ddf": samples})
    warped = warp_labels(labels[None], samples[0]).numpy()[:, 0]
    shares = np.stack([((warped == 1) | (warped == 2)) ^ True, warped == 1, warped == 2]).mean(1)  # 7 is none of them
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(shares * np.log(shares), axis=0)
    expected = {"labels": shares.argmax(0), "probability": shares.max(0), "entropy": entropy}
    for name, values in expected.items():
        image = nib.load(tmp_path / f"a_0__b_{name}.nii.gz")
        np.testing.assert_allclose(np.asarray(image.dataobj), values, atol=1e-6)
        np.testing.assert_allclose(image.affine, AFFINE, atol=1e-6)
    assert nib.load(tmp_path / "a_0__b_labels.nii.gz").get_data_dtype() == np.uint8


def test_pairs_without_names_are_told_apart(tmp_path):
    items = [make_item(k, "/data/person/t1.nii.gz") for k in range(2)]
    run(UncertaintyMap(tmp_path, name="spread"), list_data_collate(items), {"ddf": make_samples(2)})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "t1_0__moving_0_std.nii.gz",
        "t1_1__moving_1_std.nii.gz",
    ]


def test_samples_that_agree_far_away_have_no_spread():
    field = torch.full((1, 3, *SHAPE), 1e4)
    assert float(displacement_std(field.expand(8, -1, -1, -1, -1).clone(), torch.eye(3)).max()) == 0


@pytest.mark.parametrize(
    ("change", "ddf", "message"),
    [
        ({}, torch.zeros(1, 3, *SHAPE), "several samples of the field under 'ddf', got one"),
        ({}, torch.zeros(1, 1, 3, *SHAPE), "got one"),
        ({"fixed": torch.zeros(1, 1, *SHAPE)}, torch.zeros(1, 2, 3, *SHAPE), "expected a MetaTensor under 'fixed'"),
        ({"fixed": None}, torch.zeros(1, 2, 3, *SHAPE), "expected 'fixed' in the engine's output or batch"),
    ],
)
def test_what_is_missing_is_said(change, ddf, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(UncertaintyMap(tmp_path), list_data_collate([make_item(0)]) | change, {"ddf": ddf})
    assert not list(tmp_path.iterdir())
