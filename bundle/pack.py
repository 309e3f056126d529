"""`python -m bundle.pack`: the bundle as one zip file that runs wherever it is unpacked.

The same files give the same zip, byte for byte: entries are sorted, have one date and one mode, and are stored as they
are (compressed bytes would depend on the version of zlib). `manifest.json` in it has the SHA-256 of every file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from scripts.core.atomic import atomic_path

ROOT = Path(__file__).parents[1]
NAME = "structured_sir_registration"
"""Name of the bundle, and of the folder that unpacking makes."""
FOLDERS = ("bundle", "configs", "docs", "models", "scripts")
FILES = ("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "requirements.txt")
LEFT_BY_APP = tuple(Path("bundle/monailabel") / name for name in ("bin", "lib", "logs", "model"))
"""Folders that a MONAI Label server makes in its app: logs and copies, no part of the bundle."""
MANIFEST = "manifest.json"
EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip file can state


class PackError(ValueError):
    """Something that does not belong into a bundle, or a zip file that is not one of ours."""


def bundle_files(root: Path = ROOT) -> list[Path]:
    """All files of the bundle, relative to its root, sorted; no caches, hidden files or a server's; no links."""
    found = [Path(name) for name in FILES if (root / name).is_file()]
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            relative = path.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
            if hidden or any(relative.is_relative_to(place) for place in LEFT_BY_APP):
                continue
            if path.is_symlink():
                raise PackError(f"{relative} is a link; a bundle holds files only")
            if path.is_file():
                found.append(relative)
    return sorted(found, key=lambda path: path.as_posix())


def version(root: Path = ROOT) -> str:
    """The bundle's version."""
    return json.loads((root / "configs/metadata.json").read_text(encoding="utf-8"))["version"]


def manifest(root: Path = ROOT) -> dict[str, Any]:
    """Name, version, the hash of every file, and once more those of the weights."""
    hashes = {path.as_posix(): sha256(root / path) for path in bundle_files(root)}
    weights = {path: digest for path, digest in hashes.items() if path.startswith("models/") and path.endswith(".pt")}
    return {"name": NAME, "version": version(root), "weights": weights, "files": hashes}


def sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack(target: Path, root: Path = ROOT) -> Path:
    """Write the zip file; it appears under its name when it is complete."""
    content = json.dumps(manifest(root), indent=2) + "\n"
    with atomic_path(target) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for path in bundle_files(root):
            archive.writestr(_entry(path.as_posix()), (root / path).read_bytes())
        archive.writestr(_entry(MANIFEST), content)
    return target


def unpack(source: Path, folder: Path) -> Path:
    """Unpack a zip file of :func:`pack` and compare every file with the manifest.

    Returns:
        The bundle's root, `folder`/`NAME`.

    Raises:
        PackError: for names that lead outside, a missing or altered file, or one that the manifest does not name.
    """
    with zipfile.ZipFile(source) as archive:
        names = archive.namelist()
        for name in names:
            parts = PurePosixPath(name).parts
            if name.startswith("/") or "\\" in name or ":" in name or ".." in parts or parts[:1] != (NAME,):
                raise PackError(f"{source}: the name {name!r} does not belong into it")
        archive.extractall(folder)
    root = folder / NAME
    listed = json.loads((root / MANIFEST).read_text(encoding="utf-8"))["files"]
    present = {str(PurePosixPath(name).relative_to(NAME)) for name in names} - {MANIFEST}
    if present != set(listed):
        raise PackError(f"{source}: differs from its manifest in {sorted(present ^ set(listed))[0]}")
    for name, digest in listed.items():
        if sha256(root / name) != digest:
            raise PackError(f"{source}: {name} is not the file that was packed")
    return root


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(f"{NAME}/{name}", EARLIEST)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # or it would be that of the packing machine
    return entry


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bundle.pack", description="Write the bundle as one zip file.")
    default = ROOT / "output" / f"{NAME}_v{version()}.zip"
    parser.add_argument(
        "--output", type=Path, default=default, help=f"the zip file (default: {default.name} in output)"
    )
    options = parser.parse_args(arguments)
    try:
        path = pack(options.output)
    except (PackError, OSError) as error:
        print(f"pack: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, SHA-256 {sha256(path)}")
    for name, digest in manifest()["weights"].items():
        print(f"  {name}: {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
