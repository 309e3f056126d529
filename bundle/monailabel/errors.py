"""What a person did wrong, as an answer of the server: a 4xx status and one line."""

from __future__ import annotations

from fastapi import HTTPException


def bad_request(text: str) -> HTTPException:
    """400: an option is wrong."""
    return HTTPException(400, text)


def forbidden(text: str) -> HTTPException:
    """403: a place that requests must not reach."""
    return HTTPException(403, text)


def not_found(text: str) -> HTTPException:
    """404: an image, label, model or mode that does not exist."""
    return HTTPException(404, text)


def unprocessable(text: str) -> HTTPException:
    """422: the files are there, but cannot be registered."""
    return HTTPException(422, text)
