from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nibabel as nib
import pytest
from numba.core.caching import UserProvidedCacheLocator

from bundle import pack
from scripts.core import cache
from tests.commands.conftest import SMALL, PairOnDisk, weights

__all__ = ["weights"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    return pack.pack(tmp_path_factory.mktemp("packed") / "bundle.zip")


def test_the_same_files_give_the_same_bytes(archive, tmp_path):
    # Copies with other dates and modes, in a folder that lists them in another order.
    for path in reversed(pack.bundle_files()):
        copy = tmp_path / "copy" / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(pack.ROOT / path, copy)
        copy.chmod(0o600)
        os.utime(copy, (1e9, 1e9))
    again = pack.pack(tmp_path / "again.zip", tmp_path / "copy")
    assert again.read_bytes() == archive.read_bytes()


def test_names_stay_inside_and_nothing_private_is_packed(archive):
    with zipfile.ZipFile(archive) as content:
        names = content.namelist()
    assert names[:-1] == sorted(names[:-1])
    for name in names:
        parts = Path(name).parts
        assert parts[0] == pack.NAME
        assert ".." not in parts
        assert not any(part.startswith(".") or part in ("__pycache__", "tests", "output") for part in parts), name
    inside = {name.removeprefix(f"{pack.NAME}/") for name in names}
    assert {"configs/metadata.json", "configs/inference.json", "models/model.pt", "LICENSE", "manifest.json"} <= inside


def test_the_manifest_has_the_hashes_of_the_weights(archive):
    with zipfile.ZipFile(archive) as content:
        manifest = json.loads(content.read(f"{pack.NAME}/manifest.json"))
    assert manifest["weights"]["models/model.pt"] == pack.sha256(pack.ROOT / "models/model.pt")
    assert set(manifest["files"]) == {path.as_posix() for path in pack.bundle_files()}
    assert manifest["version"] == json.loads((pack.ROOT / "configs/metadata.json").read_text())["version"]


def test_an_altered_file_is_noticed(archive, tmp_path):
    altered = tmp_path / "altered.zip"
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(altered, "w") as target:
        for name in source.namelist():
            more = b"\n" if name.endswith("LICENSE") else b""
            target.writestr(name, source.read(name) + more)
    with pytest.raises(pack.PackError, match="LICENSE is not the file that was packed"):
        pack.unpack(altered, tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/absolute", "structured_sir_registration/../../outside", "other/file"])
def test_a_name_that_leads_outside_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as target:
        target.writestr(name, "x")
    with pytest.raises(pack.PackError, match="does not belong into it"):
        pack.unpack(tmp_path / "bad.zip", tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip"]


def test_an_additional_file_is_noticed(archive, tmp_path):
    more = shutil.copy(archive, tmp_path / "more.zip")
    with zipfile.ZipFile(more, "a") as target:
        target.writestr(f"{pack.NAME}/scripts/surprise.py", "")
    with pytest.raises(pack.PackError, match=r"differs from its manifest in scripts/surprise\.py"):
        pack.unpack(Path(more), tmp_path)


def test_links_are_refused(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/link.py").symlink_to("/etc/hostname")
    with pytest.raises(pack.PackError, match="is a link"):
        pack.bundle_files(tmp_path)


def test_the_unpacked_bundle_registers_a_pair(archive, tmp_path, weights):
    root = pack.unpack(archive, tmp_path / "ünpäcked, with spaces")
    _take_compiled_loops(root, tmp_path)
    pair = PairOnDisk(tmp_path)
    settings = {**SMALL, "bundle_root": str(root), "ckpt_path": weights, "output_dir": str(tmp_path / "out put")}
    settings |= {role: pair.files[role] for role in ("fixed", "moving")} | {"num_modes": 0}
    command = [sys.executable, "-m", "monai.bundle", "run", "inference"]
    command += ["--config_file", str(root / "configs/inference.json")]
    command += [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    environment = {**os.environ, "PYTHONPATH": "", cache.VARIABLE: str(tmp_path / "numba")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    warped = nib.load(tmp_path / "out put/moving__to__fixed/warped.nii.gz")
    assert warped.shape == nib.load(pair.files["fixed"]).shape


def _take_compiled_loops(root: Path, folder: Path) -> None:
    """Give the copy what numba has compiled of the same files already, to save a minute."""
    used = Path(os.environ[cache.VARIABLE])
    for package in cache.KERNELS:
        old, new = (
            UserProvidedCacheLocator.get_suitable_cache_subpath(str(place / "scripts" / package / "x.py"))
            for place in (pack.ROOT, root)
        )
        if (used / old).exists():
            shutil.copytree(used / old, folder / "numba" / cache.NAME / used.name / new)
    for path in (pack.ROOT / "scripts").rglob("*.py"):
        shutil.copystat(path, root / path.relative_to(pack.ROOT))


def test_command(tmp_path, capsys):
    assert pack.main(["--output", str(tmp_path / "x.zip")]) == 0
    said = capsys.readouterr().out
    assert pack.sha256(tmp_path / "x.zip") in said
    assert f"models/model.pt: {pack.sha256(pack.ROOT / 'models/model.pt')}" in said
    assert pack.main(["--output", "/dev/null/x.zip"]) == 1


def test_what_a_server_leaves_in_its_app_is_not_packed(tmp_path):
    kept = tmp_path / "bundle/monailabel/main.py"
    for path in (kept, *(kept.parent / name / "deep/file.py" for name in ("bin", "lib", "logs", "model"))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (kept.parent / "lib/link").symlink_to(kept)
    assert pack.bundle_files(tmp_path) == [Path("bundle/monailabel/main.py")]


def test_the_makefile_that_the_readme_speaks_of_is_packed():
    assert "make demo" in (pack.ROOT / "README.md").read_text(encoding="utf-8")
    assert Path("Makefile") in pack.bundle_files()
