"""The whole of `run inference`, from files to files; SimpleITK is the judge of every transform."""

import csv
import itertools
import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform
from scipy.ndimage import binary_fill_holes

from scripts.core.seg35 import read_names
from scripts.files.nifti import header_of
from scripts.outputs.filing import FilingEvents
from scripts.outputs.folder import OWN
from scripts.posterior.posterior_file import load
from tests.commands.conftest import SPACING, evaluator, small_model

AXES = [("L", "R"), ("P", "A"), ("I", "S")]
ORIENTATIONS = [
    "".join(codes)
    for order in itertools.permutations(range(3))
    for codes in itertools.product(*(AXES[axis] for axis in order))
]


def reoriented(path, codes):
    image = nib.load(path)
    change = ornt_transform(io_orientation(image.affine), axcodes2ornt(tuple(codes)))
    return image.as_reoriented(change)


def run(tmp_path, weights, **settings):
    rows = evaluator(tmp_path / "out", weights, **settings).run()
    return tmp_path / "out" / rows[0]["name"]


def warped_by_itk(folder, fixed, moving, transform="transform.h5"):
    images = [sitk.ReadImage(path, sitk.sitkFloat32) for path in (moving, fixed)]
    if transform.endswith(".h5"):
        t = sitk.ReadTransform(str(folder / transform))
    else:
        t = sitk.DisplacementFieldTransform(sitk.ReadImage(str(folder / transform), sitk.sitkVectorFloat64))
    return sitk.GetArrayFromImage(sitk.Resample(*images, t))


def in_ras(path):
    """Voxels in RAS order, so that results in different orientations can be compared."""
    return nib.as_closest_canonical(nib.load(path)).get_fdata()


@pytest.fixture(scope="module")
def reference(pair, weights, tmp_path_factory):
    files = {key: pair.files[key] for key in ("fixed", "moving", "moving_label", "fixed_label")}
    return run(tmp_path_factory.mktemp("reference"), weights, **files)


def test_all_files_are_there_and_in_the_fixed_images_space(reference, pair):
    names = {str(path.relative_to(reference)) for path in reference.rglob("*") if path.is_file()}
    assert names == {
        "warped.nii.gz", "displacement.nii.gz", "inverse_displacement.nii.gz", "transform.h5", "inverse_transform.h5",
        "uncertainty_std.nii.gz", "jacobian.nii.gz", "labels.nii.gz", "label_probability.nii.gz",
        "label_entropy.nii.gz", "volumes.csv", "labels.ctbl", "posterior.pt", "diagnostics.json", "modes/modes.json",
        "modes/mode1_warped.nii.gz", "modes/mode1_transform.h5", "modes/mode2_warped.nii.gz",
        "modes/mode2_transform.h5",
    }  # fmt: skip
    fixed = nib.load(pair.files["fixed"])
    for name in names:
        if name.endswith(".nii.gz"):
            image = nib.load(reference / name)
            assert image.shape[:3] == fixed.shape
            np.testing.assert_allclose(image.affine, fixed.affine, atol=1e-6)
            assert np.isfinite(image.get_fdata()).all()


@pytest.mark.parametrize("transform", ["transform.h5", "displacement.nii.gz"])
def test_simpleitk_reproduces_the_warped_image(reference, pair, transform):
    ours = sitk.GetArrayFromImage(sitk.ReadImage(str(reference / "warped.nii.gz")))
    theirs = warped_by_itk(reference, pair.files["fixed"], pair.files["moving"], transform)
    assert np.abs(ours - theirs).mean() < 1e-4 * np.ptp(ours)


def test_there_is_something_to_reproduce(reference, pair):
    """The field of this network is not the identity: otherwise the tests here would show nothing."""
    field = nib.load(reference / "displacement.nii.gz").get_fdata()
    assert np.linalg.norm(field, axis=-1).mean() > 0.3 * SPACING


def test_forward_and_inverse_make_the_identity(reference, pair):
    fixed = sitk.ReadImage(pair.files["fixed"], sitk.sitkFloat32)
    there, back = (sitk.ReadTransform(str(reference / f"{name}transform.h5")) for name in ("", "inverse_"))
    inside = np.argwhere(sitk.GetArrayFromImage(fixed) > 0)[::17, ::-1]
    points = [fixed.TransformIndexToPhysicalPoint([int(v) for v in index]) for index in inside]
    errors = [np.linalg.norm(np.subtract(back.TransformPoint(there.TransformPoint(p)), p)) for p in points]
    # Points between voxels: what is left is the linear interpolation of the inverse, on a grid of 6 mm, of a field that
    # nothing but the posterior of these few voxels smooths.
    assert np.mean(errors) < 0.1 * SPACING


def test_the_uncertainty_is_that_of_the_samples(reference):
    from scripts.posterior.posterior_file import load

    stored = load(reference / "posterior.pt")
    fields = [(count, stored.space.displacement(points[None])[0]) for _, count, points in stored.samples()]
    stack = torch.stack([field for count, field in fields for _ in range(count)])
    std = torch.from_numpy(nib.load(reference / "uncertainty_std.nii.gz").get_fdata()).float()
    # computed on the work grid, which differs from the file's by whole voxels here
    torch.testing.assert_close(std[..., 1:].permute(3, 0, 1, 2), stack.std(0), atol=0.02, rtol=0.02)
    torch.testing.assert_close(std[..., 0], stack.var(0).sum(0).sqrt(), atol=0.02, rtol=0.02)


def test_volumes_lie_in_their_intervals_and_sum_to_the_label_map(reference, pair):
    rows = list(csv.DictReader((reference / "volumes.csv").open()))
    moving = np.unique(nib.load(pair.files["moving_label"]).get_fdata())
    assert [int(row["label"]) for row in rows] == [int(value) for value in moving if value]
    for row in rows:
        assert float(row["lower_95_mm3"]) <= float(row["volume_mm3"]) <= float(row["upper_95_mm3"])
    labels = nib.load(reference / "labels.nii.gz")
    assert labels.get_data_dtype().kind in "iu"
    total = (labels.get_fdata() > 0).sum() * SPACING**3
    assert sum(float(row["volume_mm3"]) for row in rows) == pytest.approx(total, rel=0.1)


def test_diagnostics_say_what_was_done(reference):
    figures = json.loads((reference / "diagnostics.json").read_text())
    assert figures["num_proposals"] == 12
    assert figures["num_samples"] == 6
    assert 1 <= figures["ess"] <= 12
    assert 0 < figures["largest_weight"] <= 1
    assert figures["files"]["fixed"].endswith("fixed.nii.gz")
    assert {"proposals", "summary", "network", "writing"} <= set(figures["seconds"])
    assert figures["ncc_window"] == 3  # the model's, not a fixed one
    assert 0 <= figures["dice_before"] <= 1
    assert "torch" in figures["versions"]


def test_labels_with_large_numbers_and_structures_that_one_side_lacks(pair, weights, tmp_path):
    """RELIABILITY 14: values up to 10,000, stored as floats, and a structure that the fixed map does not have."""
    maps = {}
    for role in ("fixed", "moving"):
        label = nib.load(pair.files[f"{role}_label"])
        values = label.get_fdata(dtype=np.float32)
        numbers = np.unique(values)
        values[values == numbers[-1]] = 10_000
        if role == "fixed":
            values[values == numbers[1]] = 0
        maps[f"{role}_label"] = pair.write(f"large_{role}", values, label.affine, f"large {role}")
    files = {role: pair.files[role] for role in ("fixed", "moving")}
    folder = run(tmp_path, weights, **files, **maps)
    rows = {int(row["label"]): row for row in csv.DictReader((folder / "volumes.csv").open())}
    assert rows[10_000]["name"] == "label 10000"
    missing = rows[int(numbers[1])]
    assert (float(missing["fixed_volume_mm3"]), missing["dice"]) == (0.0, "")
    written = nib.load(folder / "labels.nii.gz")
    assert written.get_data_dtype() == np.int16
    assert 10_000 in np.unique(written.get_fdata())


@pytest.mark.parametrize("codes", ORIENTATIONS)
def test_all_48_orientations_give_the_same_anatomical_result(codes, pair, weights, tmp_path, reference):
    """The moving image in each orientation, the fixed one in the mirrored other half of them."""
    index = ORIENTATIONS.index(codes)
    files = {}
    for role, wanted in (("moving", codes), ("fixed", ORIENTATIONS[-1 - index])):
        files[role] = str(tmp_path / f"{role}.nii.gz")
        nib.save(reoriented(pair.files[role], wanted), files[role])
    folder = run(tmp_path, weights, **files, num_modes=0)
    np.testing.assert_allclose(nib.load(folder / "warped.nii.gz").affine, nib.load(files["fixed"]).affine, atol=1e-6)
    ours, expected = in_ras(folder / "warped.nii.gz"), in_ras(reference / "warped.nii.gz")
    assert np.abs(ours - expected).mean() < 1e-4
    theirs = warped_by_itk(folder, files["fixed"], files["moving"])
    here = sitk.GetArrayFromImage(sitk.ReadImage(str(folder / "warped.nii.gz")))
    assert np.abs(here - theirs).mean() < 1e-4


def oblique(affine, degrees=(12, -7, 20), zoom=(1.0, 1.0, 1.0)):
    turn = np.eye(4)
    for axis, angle in enumerate(np.deg2rad(degrees)):
        i, j = [a for a in range(3) if a != axis]
        rotation = np.eye(4)
        rotation[i, i] = rotation[j, j] = np.cos(angle)
        rotation[i, j], rotation[j, i] = -np.sin(angle), np.sin(angle)
        turn = turn @ rotation
    return turn @ affine @ np.diag([*zoom, 1.0])


@pytest.mark.parametrize("case", ["oblique", "anisotropic", "odd sizes", "other grids"])
def test_other_grids_are_judged_by_simpleitk(case, pair, weights, tmp_path):
    fixed, moving = (nib.load(pair.files[role]) for role in ("fixed", "moving"))
    f, m = fixed.get_fdata(dtype=np.float32), moving.get_fdata(dtype=np.float32)
    fa, ma = fixed.affine, moving.affine
    if case == "oblique":
        fa, ma = oblique(fa), oblique(ma)
    elif case == "anisotropic":
        f, fa = f[::2], fa @ np.diag([2.0, 1, 1, 1])
        m, ma = m[:, :, ::2], ma @ np.diag([1.0, 1, 2, 1])
    elif case == "odd sizes":
        f = f[1:, :-2, 3:]
        fa = fa.copy()
        fa[:3, 3] = fixed.affine[:3] @ [1, 0, 3, 1]
    else:
        ma = oblique(ma, (5, 5, -5), (1.05, 0.95, 1.0))
    files = {"fixed": pair.write("f", f, fa, f"f {case}"), "moving": pair.write("m", m, ma, f"m {case}")}
    folder = run(tmp_path, weights, **files)
    image = nib.load(folder / "warped.nii.gz")
    assert image.shape == f.shape
    np.testing.assert_allclose(image.affine, fa, atol=1e-5)
    here = sitk.GetArrayFromImage(sitk.ReadImage(str(folder / "warped.nii.gz")))
    for transform in ("transform.h5", "displacement.nii.gz"):
        theirs = warped_by_itk(folder, files["fixed"], files["moving"], transform)
        assert np.abs(here - theirs).mean() < 1e-3 * np.ptp(here)


def test_alignment_is_part_of_the_transforms(pair, weights, tmp_path):
    """A moving head that was lying elsewhere: aligned, and the files bring it back without knowing of that."""
    moving = nib.load(pair.files["moving"])
    elsewhere = oblique(moving.affine, (6, 0, -8))
    elsewhere[:3, 3] += [30, -25, 18]
    far = pair.write("m", moving.get_fdata(dtype=np.float32), elsewhere, "far")
    files = {"fixed": pair.files["fixed"], "moving": far}
    folder = run(tmp_path, weights, **files, align="affine")
    here = sitk.GetArrayFromImage(sitk.ReadImage(str(folder / "warped.nii.gz")))
    assert (here > 0).sum() > 0.5 * (nib.load(pair.files["fixed"]).get_fdata() > 0).sum()
    for transform in ("transform.h5", "displacement.nii.gz"):
        theirs = warped_by_itk(folder, files["fixed"], files["moving"], transform)
        assert np.abs(here - theirs).mean() < 1e-3 * np.ptp(here)
    there, back = (sitk.ReadTransform(str(folder / f"{name}transform.h5")) for name in ("", "inverse_"))
    point = (3.0, -4.0, 5.0)
    np.testing.assert_allclose(back.TransformPoint(there.TransformPoint(point)), point, atol=0.3)
    # The inverse as a field of displacements serves the whole moving head, wherever that lies.
    field = sitk.ReadImage(str(folder / "inverse_displacement.nii.gz"), sitk.sitkVectorFloat64)
    image = sitk.ReadImage(far)
    assert field.GetSize() == image.GetSize()
    dense = sitk.DisplacementFieldTransform(field)
    inside = np.argwhere(sitk.GetArrayFromImage(image) > 0)[::97, ::-1]
    points = [image.TransformIndexToPhysicalPoint(index.tolist()) for index in inside]
    error = [np.linalg.norm(np.subtract(dense.TransformPoint(p), back.TransformPoint(p))) for p in points]
    assert np.mean(error) < 0.1
    assert json.loads((folder / "diagnostics.json").read_text())["alignment_log_volume"] == pytest.approx(
        np.log(abs(np.linalg.det(load(folder / "posterior.pt").space.alignment[:3, :3])))
    )


def test_an_lps_copy_of_an_image_registers_to_the_identity(pair, weights, tmp_path):
    """A network that sees no difference proposes none: any displacement would come from the handling of the files."""
    quiet = small_model(initial_std=0.01)
    for head in ("mean_head", "factor_head"):
        quiet.network.get_parameter(f"{head}.weight").data.zero_()
    quiet.save(tmp_path / "quiet.pt")
    nib.save(reoriented(pair.files["fixed"], "LPS"), tmp_path / "copy.nii.gz")
    files = {"fixed": pair.files["fixed"], "moving": str(tmp_path / "copy.nii.gz")}
    folder = run(tmp_path, str(tmp_path / "quiet.pt"), **files, align="auto")
    field = nib.load(folder / "displacement.nii.gz").get_fdata()
    assert np.linalg.norm(field, axis=-1).mean() < 0.1 * SPACING
    difference = nib.load(folder / "warped.nii.gz").get_fdata() - nib.load(pair.files["fixed"]).get_fdata()
    assert np.abs(difference).mean() < 0.01


def test_two_runs_in_one_process_do_not_mix(pair, weights, tmp_path):
    first = run(tmp_path / "a", weights, fixed=pair.files["fixed"], moving=pair.files["moving"])
    second = run(tmp_path / "b", weights, fixed=pair.files["moving"], moving=pair.files["fixed"])
    again = run(tmp_path / "c", weights, fixed=pair.files["fixed"], moving=pair.files["moving"])
    warped = [nib.load(folder / "warped.nii.gz").get_fdata() for folder in (first, second, again)]
    assert np.array_equal(warped[0], warped[2])
    assert not np.array_equal(warped[0], warped[1])


def test_a_change_of_shape_between_two_runs_leaves_no_trace(pair, weights, tmp_path):
    """RELIABILITY 17, in one process and with one evaluator: a smaller pair in between changes nothing."""
    fixed = nib.load(pair.files["fixed"])
    smaller = pair.write("small", fixed.get_fdata(dtype=np.float32)[4:-4, 5:-5, 6:-6], fixed.affine, "smaller")
    lines = ["fixed,moving,name"]
    lines += [f"{pair.files['fixed']},{pair.files['moving']},{name}" for name in ("first", "again")]
    lines.insert(2, f"{smaller},{pair.files['moving']},between")
    (tmp_path / "pairs.csv").write_text("\n".join(lines), encoding="utf-8")
    work = evaluator(tmp_path / "out", weights, pairs=str(tmp_path / "pairs.csv"))
    assert [row["name"] for row in work.run()] == ["first", "between", "again"]
    warped = {row: nib.load(tmp_path / "out" / row / "warped.nii.gz") for row in ("first", "between", "again")}
    assert np.array_equal(warped["first"].get_fdata(), warped["again"].get_fdata())
    assert warped["between"].shape == nib.load(smaller).shape
    assert [row["name"] for row in work.run()] == ["first", "between", "again"]  # a second run of the same object


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a change of device needs CUDA")
def test_a_change_of_device_between_two_runs_leaves_no_trace(pair, weights, tmp_path):
    files = {role: pair.files[role] for role in ("fixed", "moving")}
    folders = [run(tmp_path / name, weights, **files, device=name) for name in ("cpu", "cuda", "cpu")]
    warped = [nib.load(folder / "warped.nii.gz").get_fdata() for folder in folders]
    assert np.array_equal(warped[0], warped[2])
    assert np.abs(warped[0] - warped[1]).mean() < 1e-3


def test_the_result_does_not_depend_on_the_chunk(pair, weights, tmp_path):
    files = {role: pair.files[role] for role in ("fixed", "moving")}
    folders = []
    for number, chunk in enumerate((1, 5, 32)):
        work = evaluator(tmp_path / str(number), weights, **files, **{"sampler::settings::chunk": chunk})
        folders.append(tmp_path / str(number) / work.run()[0]["name"])
    contents = [torch.load(folder / "posterior.pt", weights_only=True) for folder in folders]
    for content in contents[1:]:
        torch.testing.assert_close(content["weights"], contents[0]["weights"], atol=1e-6, rtol=0)
        torch.testing.assert_close(content["mean_of_samples"], contents[0]["mean_of_samples"], atol=1e-5, rtol=0)


def test_refinement_reports_its_gain(pair, weights, tmp_path, capsys, caplog):
    caplog.set_level("INFO", "scripts.core.progress")
    folder = run(tmp_path, weights, fixed=pair.files["fixed"], moving=pair.files["moving"], refine_steps=5)
    gain = json.loads((folder / "diagnostics.json").read_text())["refine_gain_log_posterior"]
    assert gain > 0
    captured = capsys.readouterr()
    assert f"refinement gained {gain:,.0f} in the log posterior" in captured.out
    assert "refining: 5 of 5" in caplog.text


def test_a_second_run_replaces_its_own_result_but_not_that_of_another_pair(pair, weights, tmp_path):
    settings = {"fixed": pair.files["fixed"], "moving": pair.files["moving"]}
    folder = run(tmp_path, weights, **settings)
    assert run(tmp_path, weights, **settings) == folder
    other = tmp_path / "elsewhere"
    other.mkdir()
    copies = {role: str(other / Path(path).name) for role, path in settings.items()}
    for role, path in settings.items():
        nib.save(nib.load(path), copies[role])
    with pytest.raises(SystemExit) as caught:
        run(tmp_path, weights, **copies)
    assert caught.value.code == 1
    assert json.loads((folder / "diagnostics.json").read_text())["files"]["fixed"] == settings["fixed"]
    run(tmp_path, weights, **copies, overwrite=True)
    assert json.loads((folder / "diagnostics.json").read_text())["files"]["fixed"] == copies["fixed"]
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_what_others_put_into_the_folder_outlives_a_second_run_of_the_pair(pair, weights, tmp_path):
    files = {"fixed": pair.files["fixed"], "moving": pair.files["moving"]}
    folder = run(tmp_path, weights, **files, moving_label=pair.files["moving_label"])
    (folder / "conditioned").mkdir()
    others = [folder / name for name in ("conditioned/warped.nii.gz", "t2_warped.nii.gz", "notes.txt")]
    for path in others:
        path.write_text(path.name)
    (folder / "warped.nii.gz").write_text("old")
    assert run(tmp_path, weights, **files) == folder
    assert [path.read_text() for path in others] == [path.name for path in others]
    assert nib.load(folder / "warped.nii.gz").shape == nib.load(files["fixed"]).shape
    assert not (folder / "labels.nii.gz").exists()  # it would be of another posterior than the files beside it
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_the_list_of_a_registrations_own_files_is_complete(pair, weights, tmp_path):
    files = {key: pair.files[key] for key in ("fixed", "moving", "moving_label", "fixed_label")}
    folder = run(tmp_path, weights, **files, report=True)
    assert {path.name for path in folder.iterdir()} - {"modes"} == OWN - {"modes"}


def test_the_judgement_is_that_of_the_report(pair, weights, tmp_path):
    """With weights as even as these, the volumes of the fixed labels decide it."""
    files = {key: pair.files[key] for key in ("fixed", "moving", "moving_label", "fixed_label")}
    folder = run(tmp_path, weights, **files, report=True, temperature=1e-6)
    judgement = json.loads((folder / "diagnostics.json").read_text())["judgement"]
    assert "volumes are outside of their intervals" in judgement
    assert judgement in (folder / "report.html").read_text(encoding="utf-8")


def test_a_mask_says_where_the_brain_of_the_report_is(pair, weights, tmp_path):
    """A head in a bright box: with the brain's mask, figures about the brain are not those of the box."""
    image = nib.load(pair.files["fixed"])
    values = image.get_fdata(dtype=np.float32)
    mask = pair.write("mask", (values > 0).astype(np.uint8), image.affine)
    head = pair.write("head", np.where(values > 0, values, 0.5).astype(np.float32), image.affine)
    work, seen = evaluator(tmp_path, weights, fixed=head, fixed_mask=mask, moving=pair.files["moving"]), []
    work.add_event_handler(FilingEvents.FILING, lambda engine: seen.append(engine.state.filing.result), work)
    work.run()
    np.testing.assert_array_equal(seen[0].brain, binary_fill_holes(values > 0))


def test_all_samples_count_alike_at_temperature_0(pair, weights, tmp_path):
    folder = run(tmp_path, weights, fixed=pair.files["fixed"], moving=pair.files["moving"], temperature=0.0)
    figures = json.loads((folder / "diagnostics.json").read_text())
    assert figures["ess"] == pytest.approx(figures["num_proposals"])


def test_the_header_of_what_is_no_nifti_is_none(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 3, 3)))
    assert header_of(str(tmp_path / "x.npy")) is None
    nib.save(nib.MGHImage(np.zeros((3, 3, 3), np.float32), np.eye(4)), tmp_path / "x.mgz")
    assert header_of(str(tmp_path / "x.mgz")) is None


@pytest.mark.parametrize(("name", "number"), [("seg35", 14), ("freesurfer", 17)])
def test_tables_of_names_can_be_asked_for(name, number):
    assert read_names(name)[number] == "Left-Hippocampus"
