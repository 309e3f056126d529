from __future__ import annotations

import pytest
import torch

from scripts.registration.errors import OptionError
from scripts.registration.label_overlap import OverlapLikelihood
from scripts.registration.target import Target


def cube(start: int) -> torch.Tensor:
    """A label map [1, 1, 8, 8, 8] with a bar of 2 voxels of label 5 along the first axis."""
    label = torch.zeros(1, 1, 8, 8, 8, dtype=torch.int32)
    label[0, 0, start : start + 2, 3, 3] = 5
    return label


def test_by_hand():
    # Bars that share one of two voxels: Dice = 2 · 1 / (2 + 2) = 0.5; shifted by one voxel they coincide: 1.
    likelihood = OverlapLikelihood([5], weight=0.1)
    ddf = torch.zeros(2, 3, 8, 8, 8)
    ddf[1, 0] = 1.0
    values = likelihood(cube(2), cube(3), ddf, [5])
    assert values.tolist() == pytest.approx([0.1 * 512 * 0.5, 0.1 * 512 * 1.0])


def test_structures_in_neither_image_count_as_matched():
    values = OverlapLikelihood([5, 9], weight=1.0)(cube(2), cube(2), torch.zeros(1, 3, 8, 8, 8), [5, 9])
    assert values.tolist() == pytest.approx([512.0])


def test_gradient_pulls_the_structures_together():
    ddf = torch.full((1, 3, 8, 8, 8), 0.0)
    ddf[:, 0] = 0.5
    ddf.requires_grad_()
    OverlapLikelihood([5])(cube(2), cube(3), ddf, [5]).sum().backward()
    assert ddf.grad[:, 0].sum() > 0


def test_choice_repeats_with_its_seed_and_varies():
    likelihood = OverlapLikelihood(range(1, 20), structures=3)
    assert likelihood.choose(4) == likelihood.choose(4)
    assert len({tuple(likelihood.choose(seed)) for seed in range(20)}) > 10


def test_target_uses_labels_only_where_it_has_an_overlap():
    image = torch.rand(1, 1, 8, 8, 8)
    z = torch.zeros(1, 3, 4, 4, 4)
    labels = (cube(3), cube(2))
    plain = Target()
    assert torch.equal(
        plain(plain.prepare(image, image, labels=labels)[0], z), plain(plain.prepare(image, image)[0], z)
    )
    target = Target(overlap=OverlapLikelihood([5], weight=0.1))
    difference = target(target.prepare(image, image, labels=labels)[0], z) - plain(plain.prepare(image, image)[0], z)
    # With an overlap the correlation is computed step by step, without one in one pass: equal to single precision.
    assert difference.item() == pytest.approx(0.1 * 512 * 0.5, abs=1e-3)


@pytest.mark.parametrize("arguments", [{"labels": []}, {"labels": [1], "weight": 0.0}])
def test_bad_options_are_named(arguments):
    with pytest.raises(OptionError):
        OverlapLikelihood(**arguments)
