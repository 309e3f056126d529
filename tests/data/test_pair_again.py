"""A pair prepared again is the pair that was prepared: other orientation, other spacing, alignment, mask."""

import nibabel as nib
import numpy as np
import pytest
import torch

from scripts.alignment.align import Alignment
from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.data import pair_input
from scripts.data.pair_again import pair_again_transforms
from scripts.data.pair_input import pair_input_transforms
from scripts.registration.space import PairSpace
from scripts.synthetic.subjects import synthesize_subject

MATRIX = np.array([[1.02, 0.06, 0, 2], [-0.06, 0.98, 0.01, -3], [0, -0.01, 1, 4], [0, 0, 0, 1.0]])


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(pair_input, "align", lambda *_: Alignment(MATRIX, "affine", "given"))
    paths = {}
    for seed, role, spacing in ((3, "fixed", 5.0), (4, "moving", 4.0)):
        person = synthesize_subject(seed=seed, shape=tuple(int(n * 6 / spacing) for n in (26, 32, 37)), spacing=spacing)
        image, affine = person.image, person.affine
        if role == "fixed":  # stored from the other side, axes exchanged
            image = np.ascontiguousarray(image[::-1].transpose(2, 0, 1))
            flip = np.eye(4)
            flip[0, 0], flip[0, 3] = -1, person.image.shape[0] - 1
            affine = (affine @ flip)[:, [2, 0, 1, 3]]
            paths["fixed_mask"] = str(tmp_path / "mask.nii.gz")
            nib.save(nib.Nifti1Image((image > 0).astype(np.uint8), affine), paths["fixed_mask"])
        paths[role] = str(tmp_path / f"{role}.nii.gz")
        nib.save(nib.Nifti1Image(image, affine), paths[role])
    return paths


def test_the_same_pair_comes_out(files):
    before = pair_input_transforms(pixdim=6.0, stride=8, alignment="affine")(files)
    grids = [Grid.of(before[key]) for key in ("fixed_file", "moving_file", "fixed")]
    again = pair_again_transforms(PairSpace(*grids, MATRIX))(files)
    for key in ("fixed", "moving", "fixed_mask"):
        assert Grid.of(again[key]).same_as(Grid.of(before[key]), 1e-6)
        torch.testing.assert_close(again[key].as_tensor(), before[key].as_tensor(), rtol=0, atol=2e-4)
    assert float(before["moving"].std()) > 0.05


def test_another_file_is_refused(files):
    before = pair_input_transforms(pixdim=6.0, stride=8, alignment="affine")(files)
    fixed, work = (Grid.of(before[key]) for key in ("fixed_file", "fixed"))
    with pytest.raises(DataError, match=r"moving image: .*name the right file with --moving"):
        pair_again_transforms(PairSpace(fixed, fixed, work, MATRIX))(files)
