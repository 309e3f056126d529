"""What a user can get wrong: one line that says what, and an exit code; the other pairs are still done."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from tests.commands.conftest import ROOT, SMALL, evaluator


def fails(capsys, tmp_path, weights, **settings):
    """The error that a run ends with: one line on stderr, nothing in the output folder, exit code 1."""
    with pytest.raises(SystemExit) as caught:
        evaluator(tmp_path / "out", weights, **settings).run()
    assert caught.value.code == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert not list((tmp_path / "out").glob("*__to__*"))
    assert not list((tmp_path / "out").glob(".part*"))
    return errors[0]


def save(path, values, affine=None):
    nib.save(nib.Nifti1Image(values, np.eye(4) * [6, 6, 6, 1] if affine is None else affine), path)


def broken_file(kind, path, good):
    """A file that is wrong in one way, under the given name."""
    values, affine = nib.load(good).get_fdata(dtype=np.float32), nib.load(good).affine
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        raw = gzip.decompress(Path(good).read_bytes())
        path.write_bytes(gzip.compress(raw[: len(raw) // 2]))
    elif kind == "text":
        path.write_text("this is no image")
    elif kind == "4-D":
        save(path, np.stack([values, values], axis=-1), affine)
    elif kind == "2-D":
        save(path, values[:, :, :1], affine)
    elif kind == "all nan":
        save(path, np.full_like(values, np.nan), affine)
    elif kind == "constant":
        save(path, np.ones_like(values), affine)
    elif kind == "singular affine":
        raw = bytearray(gzip.decompress(Path(good).read_bytes()))
        raw[252:254] = b"\0\0"  # qform_code
        raw[296:308] = raw[280:292]  # srow_y = srow_x
        path.write_bytes(gzip.compress(bytes(raw)))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "does not exist"),
        ("empty", "empty"),
        ("truncated", ""),
        ("text", ""),
        ("4-D", "3-D volume"),
        ("2-D", "slice"),
        ("all nan", "NaN"),
        ("constant", "constant"),
        ("singular affine", "singular"),
    ],
)
@pytest.mark.parametrize("role", ["fixed", "moving"])
def test_a_broken_file_is_named_with_its_role_and_the_reason(kind, reason, role, capsys, tmp_path, weights, pair):
    path = tmp_path / "wrong.nii.gz"
    broken_file(kind, path, pair.files[role])
    files = {"fixed": pair.files["fixed"], "moving": pair.files["moving"], role: str(path)}
    line = fails(capsys, tmp_path, weights, **files)
    assert role in line
    assert "wrong.nii.gz" in line
    assert reason in line


def test_nan_voxels_are_repaired_with_a_warning(capsys, tmp_path, weights, pair, caplog):
    values = nib.load(pair.files["fixed"]).get_fdata(dtype=np.float32)
    values[0, 0, 0] = np.nan
    path = pair.write("n", values, nib.load(pair.files["fixed"]).affine, "with nan")
    evaluator(tmp_path, weights, fixed=path, moving=pair.files["moving"]).run()
    assert any("NaN or infinite voxels are set to 0" in record.getMessage() for record in caplog.records)


def test_images_far_apart_are_refused_with_their_places(capsys, tmp_path, weights, pair):
    moving = nib.load(pair.files["moving"])
    affine = moving.affine.copy()
    affine[:3, 3] += 1000
    path = pair.write("far", moving.get_fdata(dtype=np.float32), affine, "very far")
    line = fails(capsys, tmp_path, weights, fixed=pair.files["fixed"], moving=path, align="none")
    assert "mm" in line
    assert "--align" in line


@pytest.mark.parametrize("kind", ["label", "mask"])
def test_a_label_or_mask_of_another_grid_is_refused(kind, capsys, tmp_path, weights, pair):
    values = np.ones((5, 5, 5), np.int16)
    path = pair.write("other", values, np.eye(4), f"other {kind}")
    files = {"fixed": pair.files["fixed"], "moving": pair.files["moving"], f"moving_{kind}": path}
    assert f"moving_{kind}" in fails(capsys, tmp_path, weights, **files)


def test_of_many_pairs_the_good_ones_are_done_and_the_bad_ones_listed(capsys, tmp_path, weights, pair):
    lines = ["fixed,moving,name"]
    lines += [f"{pair.files['fixed']},{pair.files['moving']},good", f"{pair.files['fixed']},/nowhere/m.nii,bad"]
    lines += [f"{pair.files['moving']},{pair.files['fixed']},good too"]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    with pytest.raises(SystemExit) as caught:
        evaluator(tmp_path / "out", weights, pairs=str(tmp_path / "pairs.csv")).run()
    assert caught.value.code == 1
    captured = capsys.readouterr()
    assert "1 of 3 pairs failed" in captured.err
    assert "/nowhere/m.nii" in captured.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"good", "good too", "registrations.csv"}
    assert "bad" in (tmp_path / "out/registrations.csv").read_text()


def test_an_interruption_leaves_nothing_half_written(tmp_path, weights, pair, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("scripts.outputs.result_files.save", interrupt)
    with pytest.raises(SystemExit) as caught:
        evaluator(tmp_path / "out", weights, fixed=pair.files["fixed"], moving=pair.files["moving"]).run()
    assert caught.value.code == 130
    assert not list((tmp_path / "out").rglob("*.nii.gz"))


def test_debug_shows_where_it_happened(tmp_path, weights, pair):
    with pytest.raises(ValueError, match="does not exist"):
        evaluator(tmp_path, weights, fixed=pair.files["fixed"], moving="/nowhere.nii", debug=True).run()


def command(name, cwd, *arguments):
    settings = {**SMALL, **dict(zip(arguments[::2], arguments[1::2], strict=True))}
    line = [sys.executable, "-m", "monai.bundle", "run", name, "--config_file", str(ROOT / f"configs/{name}.json")]
    for key, value in settings.items():
        line += [f"--{key}", str(value)]
    environment = {**os.environ, "PYTHONPATH": ""}
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_command_works_from_a_folder_with_its_own_scripts_and_fails_in_one_line(tmp_path, weights, pair):
    """RELIABILITY: from another directory that has its own `scripts/`, with spaces and other letters in paths."""
    elsewhere = tmp_path / "ein Ordner ü"
    (elsewhere / "scripts").mkdir(parents=True)
    (elsewhere / "scripts/__init__.py").write_text("raise RuntimeError('the wrong scripts')")
    given = ["ckpt_path", weights, "output_dir", str(elsewhere / "out"), "fixed", pair.files["fixed"]]
    done = command("inference", elsewhere, *given, "moving", pair.files["moving"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert "The result is in" in done.stdout
    failed = command("inference", elsewhere, *given, "moving", "/nowhere/at all.nii.gz")
    assert failed.returncode == 1
    assert "error: moving /nowhere/at all.nii.gz: the file does not exist" in failed.stderr
    assert "Traceback" not in failed.stderr
    figures = json.loads((elsewhere / "out/moving__to__fixed/diagnostics.json").read_text())
    assert figures["num_proposals"] == 12


def test_the_command_runs_after_packing_and_unpacking_and_from_elsewhere(tmp_path):
    """RELIABILITY 16. As far as reading the weights and looking for the files: a whole run would compile everything."""
    packed, unpacked = tmp_path / "packed", tmp_path / "ausgepackt ü 1"
    for folder in ("scripts", "configs", "models"):
        shutil.copytree(ROOT / folder, packed / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.unpack_archive(shutil.make_archive(str(tmp_path / "bundle"), "zip", packed), unpacked)
    line = [sys.executable, "-m", "monai.bundle", "run", "inference", "--device", "cpu", "--fixed", "f.nii"]
    line += ["--moving", "m.nii", "--config_file"]
    environment = {**os.environ, "PYTHONPATH": ""}
    there = subprocess.run(
        [*line, "configs/inference.json"], cwd=unpacked, env=environment, capture_output=True, text=True, check=False
    )
    assert there.returncode == 1
    assert there.stderr.splitlines()[-1] == "error: fixed f.nii: the file does not exist"
    config = str(unpacked / "configs/inference.json")
    elsewhere = subprocess.run(
        [*line, config], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert elsewhere.returncode == 1
    assert elsewhere.stderr.splitlines()[-1] == "error: fixed f.nii: the file does not exist"
    assert "Traceback" not in there.stderr + elsewhere.stderr
