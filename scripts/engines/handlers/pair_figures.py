"""Base of handlers that look at every pair of an evaluation: a row of numbers for each, whose means become metrics.

Such a handler knows nothing of the network. It takes what it needs from the engine's batch and output, by keys,
decollated or not.
"""

from __future__ import annotations

import itertools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ignite.engine import Events
from monai.data import MetaTensor, decollate_batch
from torch import Tensor

from scripts.core.atomic import write_table
from scripts.core.pair_keys import stem
from scripts.core.processes import Processes

ROLES = ("fixed", "moving")


class PairFigures(ABC):
    """Collects rows during an epoch; at its end their means are in `engine.state.metrics` of every process.

    Attached by `attach(engine)`, as one of an evaluator's `val_handlers`, or under a name as a `key_val_metric`. What
    shows or saves metrics (`StatsHandler`, `CheckpointSaver`) has to come after it.

    A pair is named after `fixed_name` and `moving_name` in the batch, else after its files and its number.

    Args:
        name: of the main figure; others begin with it.
        keys: where each volume is, in the output or the batch (where both have it, the output's is taken).
        csv_path: of a table with a row a pair, written after each epoch by the first process; None for none.
    """

    def __init__(self, name: str, keys: Mapping[str, str], csv_path: str | Path | None = None) -> None:
        self.name, self.keys = name, dict(keys)
        self.csv_path = None if csv_path is None else Path(csv_path)
        self._rows: list[dict[str, Any]] = []

    def attach(self, engine: Any, name: str | None = None) -> None:
        """Watch an engine; `name` replaces the one given at construction."""
        self.name = name or self.name
        engine.add_event_handler(Events.EPOCH_STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._look)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._finish)

    @abstractmethod
    def figures(self, pair: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
        """The numbers of one pair.

        Args:
            pair: volumes by the names in `keys`, without the batch axis; what the engine lacks is missing here.
            names: of the fixed and of the moving image.

        Returns:
            By the names of the metrics; NaN for what does not exist.
        """

    def _start(self) -> None:
        self._rows = []

    def _look(self, engine: Any) -> None:
        name_keys = {f"{role}_name": f"{role}_name" for role in ROLES}
        for pair in _pairs(engine, self.keys | name_keys):
            place = Processes.current().place(len(self._rows))
            names = [_name(pair, role, place) for role in ROLES]
            self._rows.append(dict(zip(ROLES, names, strict=True)) | self.figures(pair, names))

    def _finish(self, engine: Any) -> None:
        processes = Processes.current()
        told = [json.loads(text) for text in processes.gather(json.dumps(self._rows))]
        # In the order of the dataset, if pair k went to process k mod N.
        rows = [row for turn in itertools.zip_longest(*told) for row in turn if row is not None]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        for column in columns[len(ROLES) :]:
            values = [row[column] for row in rows if not math.isnan(row.get(column, math.nan))]
            engine.state.metrics[column] = fmean(values) if values else math.nan
        if self.csv_path is not None and processes.is_first:
            write_table(self.csv_path, columns, ([row.get(column) for column in columns] for row in rows))


def volume(pair: Mapping[str, Any], name: str, keys: Mapping[str, str]) -> Tensor:
    """A volume of a pair as a plain tensor. Raises ValueError when the engine had none."""
    if not isinstance(pair.get(name), Tensor):
        raise ValueError(f"expected {keys[name]!r} in the engine's output or batch: set the handler's `{name}`")
    return pair[name].as_subclass(Tensor)


def field_samples(pair: Mapping[str, Any], keys: Mapping[str, str]) -> Tensor:
    """The fields of a pair, float32 or float64, [K, 3, X, Y, Z] (K = 1 for one); ValueError for other shapes."""
    ddf = volume(pair, "ddf", keys)
    if ddf.ndim not in (4, 5) or ddf.shape[-4] != 3:
        raise ValueError(
            f"expected fields of shape [B, 3, X, Y, Z] or [B, K, 3, X, Y, Z] under {keys['ddf']!r}, "
            f"got {list(ddf.shape)} for one pair"
        )
    ddf = ddf if ddf.dtype.itemsize >= 4 else ddf.float()
    return ddf[None] if ddf.ndim == 4 else ddf


def _pairs(engine: Any, keys: Mapping[str, str]) -> list[dict[str, Any]]:
    """What batch and output have of each pair, by the names in `keys`."""
    pairs: list[dict[str, Any]] = []
    for content in (engine.state.batch, engine.state.output):
        if isinstance(content, Mapping):
            wanted = {key: content[key] for key in set(keys.values()) if content.get(key) is not None}
            content = decollate_batch(wanted) if wanted else []
        # Other outputs, such as a bare tensor, have no keys.
        items = [item for item in content if isinstance(item, Mapping)] if isinstance(content, list) else []
        if not items:
            continue
        pairs = pairs or [{} for _ in items]
        for pair, item in zip(pairs, items, strict=True):
            pair |= {name: item[key] for name, key in keys.items() if key in item}
    return pairs


def _name(pair: Mapping[str, Any], role: str, place: int) -> str:
    """What the image of a role is called."""
    if isinstance(pair.get(f"{role}_name"), str):
        return pair[f"{role}_name"].replace("/", "_")
    for key in (role, f"{role}_label"):
        file = pair[key].meta.get("filename_or_obj") if isinstance(pair.get(key), MetaTensor) else None
        if file:
            return f"{stem(str(file))}_{place}"  # many datasets have files of the same name in folders
    return f"{role}_{place}"
