"""Where numba keeps what it has compiled."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def give_numba_a_cache() -> None:
    """Name a folder for numba's cache if it would find none: without one, compiled functions cannot be imported.

    Numba writes beside the code or into the user's cache. In a container that is read-only, or with a user who has no
    home, it can do neither. To be called before numba is imported.
    """
    if os.environ.get(VARIABLE) or _writable(Path(__file__).parent) or _writable(_of_user()):
        return
    folder = Path(tempfile.gettempdir()) / f"structured-sir-numba-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Compiled code is run: a folder that somebody else has put there is not to be used.
        if folder.stat().st_uid != os.getuid():
            folder = Path(tempfile.mkdtemp(prefix="structured-sir-numba-"))
    except OSError:
        return
    os.environ[VARIABLE] = str(folder)


def _of_user() -> Path:
    """The user's cache, as on Linux; elsewhere it lies in the home as well."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no home
        return Path("/")


def _writable(folder: Path) -> bool:
    """Whether something can be written into a folder, or into the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)
