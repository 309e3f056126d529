"""What a person did wrong, as an answer of the server: a 4xx status and one line."""

from __future__ import annotations

from functools import partial

from fastapi import HTTPException

bad_request = partial(HTTPException, 400)
"""An option is wrong."""
forbidden = partial(HTTPException, 403)
"""A place that requests must not reach."""
not_found = partial(HTTPException, 404)
"""An image, label, model or mode that does not exist."""
unprocessable = partial(HTTPException, 422)
"""The files are there, but cannot be registered."""
