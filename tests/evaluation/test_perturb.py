"""Disturbances: what they change, how much, and that they are the same every time."""

import pytest
import torch
from monai.data import MetaTensor

from scripts.evaluation import perturb
from scripts.evaluation.perturb import PERTURBATIONS, Perturbation, perturbation

SHAPE = (28, 30, 32)


@pytest.fixture(scope="module")
def item():
    """A ball of 9 voxels radius with smooth texture at 2 mm; its left half is label 1, the right half label 2."""
    x, y, z = torch.meshgrid(*(torch.arange(float(n)) - n / 2 for n in SHAPE), indexing="ij")
    ball = (x.square() + y.square() + z.square()) < 81
    image = ((0.55 + 0.3 * torch.sin(x / 3) * torch.cos(y / 4)) * ball)[None]
    label = (ball * (1 + (x > 0)))[None].int()
    affine = torch.diag(torch.tensor([-2.0, 2.0, 2.0, 1.0], dtype=torch.float64))
    volumes = {"moving": image, "fixed": image.flip(1), "moving_label": label, "fixed_label": label.flip(1)}
    names = {"fixed_name": "a", "moving_name": "b"}
    return {key: MetaTensor(values, affine=affine) for key, values in volumes.items()} | names


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_only_the_moving_scan_changes_and_always_alike(item, name):
    original = item["moving"].clone()
    one, two = Perturbation(name)(item), Perturbation(name)(item)
    other = Perturbation(name, seed=1)(item)
    assert torch.equal(item["moving"], original)
    assert torch.equal(one["moving"], two["moving"])
    assert not torch.equal(one["moving"], original)
    assert one["moving"].shape == original.shape
    assert one["moving"].isfinite().all()
    assert one["moving"].min() >= 0
    assert one["moving"].max() <= 1 + 1e-6
    assert torch.equal(one["moving"].affine, item["moving"].affine)
    for key in ("fixed", "fixed_label"):
        assert one[key] is item[key]
    moves = name in ("rotate", "shift")
    assert torch.equal(one["moving_label"], item["moving_label"]) is not moves
    if name not in ("gamma", "blur"):  # two directions, or nothing random
        assert not torch.equal(one["moving"], other["moving"])


def center(label):
    return label[0].nonzero().double().mean(0)


def test_a_shift_is_as_long_as_it_says(item):
    moved = center(Perturbation("shift")(item)["moving_label"]) - center(item["moving_label"])
    assert float(2.0 * moved.norm()) == pytest.approx(perturb.SHIFT_MM, abs=1.0)  # labels move by whole voxels


def test_a_rotation_turns_by_its_angle_about_the_center(item):
    turned = Perturbation("rotate")(item)["moving_label"]
    assert float((center(turned) - center(item["moving_label"])).norm()) < 0.3
    field = perturb._rotation(item["moving"].as_tensor(), torch.full((3,), 2.0), torch.Generator().manual_seed(0))
    grid = torch.stack(torch.meshgrid(*(torch.arange(float(n)) for n in SHAPE), indexing="ij"))
    mapped = (grid + field[0]).flatten(1)
    steps = mapped.reshape(3, *SHAPE)[:, 1, 1, 1] - mapped.reshape(3, *SHAPE)[:, 0, 1, 1]
    assert float(steps.norm()) == pytest.approx(1.0, abs=1e-4)  # rigid
    # trace R = 1 + 2 cos θ
    corner = mapped.reshape(3, *SHAPE)[:, 0, 0, 0]
    rows = [mapped.reshape(3, *SHAPE)[(slice(None), *one)] - corner for one in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    trace = sum(float(row[i]) for i, row in enumerate(rows))
    angle = torch.rad2deg(torch.arccos(torch.tensor((trace - 1) / 2)))
    assert float(angle) == pytest.approx(perturb.ROTATE_DEGREES, abs=0.05)


def test_noise_has_its_strength_inside_and_none_outside(item):
    difference = Perturbation("noise")(item)["moving"] - item["moving"]
    brain = item["moving"] > 0
    assert float(difference[brain].std()) == pytest.approx(perturb.NOISE, rel=0.05)
    assert not difference[~brain].any()


def test_stripping_takes_from_the_rim_and_leaves_tissue_outside(item):
    stripped = Perturbation("strip")(item)["moving"]
    brain = item["moving"] > 0
    assert (brain & (stripped == 0)).any()
    assert (~brain & (stripped > 0)).any()
    inside = torch.zeros_like(brain)
    inside[:, 10:18, 11:19, 12:20] = True
    assert torch.equal(stripped[inside], item["moving"][inside])


def test_names():
    assert perturbation(None) is None
    assert str(perturbation("blur")) == "blur, seed 0"
    with pytest.raises(ValueError, match=r"--perturb must be one of gamma, bias, .*, got 'twist'"):
        perturbation("twist")
