"""Where numba keeps what it has compiled: outside of the repository, in a folder for each state of the kernels.

To see whether what it compiled is still right, numba looks at the file of the compiled function alone. Ours inline
functions of other modules, and after an update of those numba would run the old code. So the folder's name is a digest
of the sources of all kernels.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"
NAME = "structured-sir-numba"
SCRIPTS = Path(__file__).parents[1]
KERNELS = ("gaussian/backends", "registration/backends")

DAYS_KEPT = 30
"""So long a folder stays after its last use: another copy of the repository, or a process that runs on, may need it."""

_OURS = re.compile(r"[0-9a-f]{16}(\.old-\d+)?")


def give_numba_a_cache(scripts: Path = SCRIPTS) -> None:
    """Name the folder for numba's cache. To be called before numba is imported.

    It lies in the folder that the variable names already, else in the user's cache, else among the temporary files: in
    a container that is read-only, or with a user who has no home, numba by itself would find none, and compiled
    functions could not be imported.
    """
    key = _digest(scripts)
    for root in _roots():
        folder = root / key
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            os.utime(folder)  # in use: see _sweep
            if os.access(folder, os.W_OK):
                break
    else:
        return
    with contextlib.suppress(OSError):
        _sweep(root, key)
    os.environ[VARIABLE] = str(folder)
    numba = sys.modules.get("numba")
    if numba is not None:  # it has read the variable already
        numba.config.CACHE_DIR = str(folder)


def _digest(scripts: Path) -> str:
    """One for all kernels: which of them inline what is not written down anywhere."""
    digest = hashlib.sha256()
    for package in KERNELS:
        for path in sorted((scripts / package).glob("*.py")):
            digest.update(f"{package}/{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _roots() -> Iterator[Path]:
    """Folders to try, best first."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        # What a process gives to those that it starts is named for its own sources, theirs may be newer.
        given = Path(chosen).parent
        yield given if given.name.startswith(NAME) else Path(chosen) / NAME
    with contextlib.suppress(RuntimeError):  # no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / NAME
    user = os.getuid() if hasattr(os, "getuid") else None  # Windows has no such numbers
    with contextlib.suppress(OSError):
        root = Path(tempfile.gettempdir()) / f"{NAME}-{'user' if user is None else user}"
        root.mkdir(mode=0o700, exist_ok=True)
        # Compiled code is run: a folder that somebody else has put there is not to be used.
        yield root if user in (None, root.stat().st_uid) else Path(tempfile.mkdtemp(prefix=f"{NAME}-"))


def _sweep(root: Path, key: str) -> None:
    """Take away the folders of other sources that nobody has used for long; several processes may do so at once."""
    oldest = time.time() - DAYS_KEPT * 86_400
    for folder in root.iterdir():
        if folder.name == key or not _OURS.fullmatch(folder.name):
            continue
        with contextlib.suppress(OSError):  # another process was faster
            if max(path.stat().st_mtime for path in (folder, *folder.iterdir())) > oldest:
                continue
            # Renamed first: a process that comes back to these sources now makes a new folder instead of a torn one.
            doomed = folder.rename(folder.with_name(f"{folder.name[:16]}.old-{os.getpid()}"))
            shutil.rmtree(doomed, ignore_errors=True)
