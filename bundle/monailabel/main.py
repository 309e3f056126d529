"""Where MONAI Label looks for the app:

monailabel start_server --app bundle/monailabel --studies <folder>
"""

from __future__ import annotations

import sys
from pathlib import Path

# The server imports this file alone; the bundle it belongs to is two folders up.
_ROOT = str(Path(__file__).resolve().parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from bundle.monailabel.app import RegistrationApp  # noqa: E402

__all__ = ["RegistrationApp"]
