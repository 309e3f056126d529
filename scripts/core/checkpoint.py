"""Reading and writing checkpoints so that a crash, a full disk or a foreign file cannot do harm.

A file is written beside its final name, flushed to the disk, and renamed: under the final name there is always a whole
checkpoint, the old one or the new one. Reading never runs code from the file.
"""

from __future__ import annotations

import pickle
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scripts.core.atomic import atomic_path
from scripts.core.errors import CheckpointError, first_line, shorten

FITTED_BEFORE = "weight_scale.temperature"
"""Where files of earlier versions have the temperature that was fitted, 0 for none."""
DESCRIPTION = "description"
"""Where files have what their weights mean."""
_NAN_IF_UNKNOWN = ("weight_scale.value",)


def save_atomically(content: Mapping[str, Any], path: str | Path) -> None:
    """Write a checkpoint; the file under `path` is the old or the new one at any time.

    Raises:
        CheckpointError: if it cannot be written (a full disk, for instance), or if a tensor in it is not finite. The
            old file stays as it was.
    """
    path = Path(path)
    if bad := _non_finite(content):
        raise CheckpointError(path, f"not written, since it would hold NaN or infinite numbers: {', '.join(bad[:5])}")
    try:
        with atomic_path(path, durable=True) as part, part.open("wb") as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(path, f"could not be written ({error}); what was there before is intact") from error


def read(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint without running anything in it.

    Raises:
        CheckpointError: if it is missing, truncated, no checkpoint, or holds more than tensors and plain values.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(path, "there is no such file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            path, f"refused: it holds more than tensors and plain values, or is no checkpoint ({first_line(error)})"
        ) from error
    except (RuntimeError, EOFError, OSError, zipfile.BadZipFile, ValueError, KeyError) as error:
        raise CheckpointError(path, f"truncated or not a checkpoint ({first_line(error)})") from error
    if not isinstance(content, dict):
        raise CheckpointError(path, f"expected a dictionary, got {type(content).__name__}")
    return content


def described_state(network: nn.Module, description: Mapping[str, Any]) -> dict[str, Tensor]:
    """A network's `state_dict` that says what it means, in the metadata that torch keeps with it.

    So a file of weights is a plain `state_dict` to everybody else: MONAI's `load` and its exporters take it as it is.
    """
    state: Any = network.state_dict()
    state._metadata[DESCRIPTION] = dict(description)
    return state


def description_of(content: Mapping[str, Any]) -> Any:
    """What a file says about its weights, see :func:`described_state`; None for files of earlier versions."""
    return content.get(DESCRIPTION, getattr(content, "_metadata", {}).get(DESCRIPTION))


def network_state(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The network's weights in a file: all of it, or what a training has under `model` (earlier ones: `network`)."""
    state = content.get("model", content.get("network", content))
    return {name: value for name, value in state.items() if name not in (FITTED_BEFORE, DESCRIPTION)}


def beside_weights(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a training's checkpoint holds beside weights and their description; nothing where weights are alone."""
    if not {"model", "network"} & set(content):
        return {}
    return {name: value for name, value in content.items() if name not in ("model", "network", DESCRIPTION)}


def load_network(network: nn.Module, path: str | Path, strict: bool = True) -> list[str]:
    """Load weights into a network.

    Args:
        strict: all of the network's weights must be there and nothing else. Otherwise what fits in name and shape is
            taken, as for starting one variant from another.

    Returns:
        Names of the network's weights that were not in the file (empty if strict).

    Raises:
        CheckpointError: if it does not fit; names the missing and the unexpected weights.
    """
    state = network_state(read(path))
    if not strict:  # the usual spread of log-weights is that of another training
        state = {name: value for name, value in state.items() if not name.endswith(_NAN_IF_UNKNOWN)}
    own = network.state_dict()
    fitting = {
        name: value
        for name, value in state.items()
        if name in own and isinstance(value, Tensor) and value.shape == own[name].shape
    }
    missing = [name for name in own if name not in fitting]
    unexpected = [name for name in state if name not in fitting]
    if strict and (missing or unexpected):
        gone, others = (shorten(names, 6) or "none" for names in (missing, unexpected))
        differences = f"missing or of another shape: {gone}; unexpected: {others}"
        raise CheckpointError(path, f"made for another architecture; {differences}")
    if not fitting:
        raise CheckpointError(path, f"nothing in it fits this network; it holds {shorten(list(state), 6) or 'none'}")
    network.load_state_dict(fitting, strict=False)
    return missing


def random_state() -> dict[str, Any]:
    """The state of all random generators, in types that load with `weights_only=True`."""
    version, keys, position = random.getstate()[0], list(random.getstate()[1]), random.getstate()[2]
    kind, array, where, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - MONAI uses the global one
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, keys, position],
        "numpy": [kind, torch.from_numpy(np.asarray(array, dtype=np.int64)), int(where), int(has_gauss), float(cached)],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put all random generators back to a state from `random_state`."""
    torch.set_rng_state(state["torch"].cpu())
    version, keys, position = state["python"]
    random.setstate((version, tuple(keys), position))
    kind, array, where, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, array.numpy().astype(np.uint32), where, has_gauss, cached))  # noqa: NPY002
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([part.cpu() for part in state["cuda"]])


def _non_finite(content: Any, name: str = "") -> list[str]:
    """Names of floating-point tensors that are not finite. A NaN scale only says that none is known."""
    if isinstance(content, Tensor):
        known = name.endswith(_NAN_IF_UNKNOWN)
        return [] if known or not content.is_floating_point() or bool(torch.isfinite(content).all()) else [name]
    if isinstance(content, Mapping):
        return [bad for key, value in content.items() for bad in _non_finite(value, f"{name}.{key}".lstrip("."))]
    if isinstance(content, list | tuple):
        return [bad for i, value in enumerate(content) for bad in _non_finite(value, f"{name}[{i}]")]
    return []
