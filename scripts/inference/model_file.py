"""Reading files of weights as models: one, an ensemble of several, and those of earlier versions."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scripts.core.checkpoint import FITTED_BEFORE, description_of, load_network, read
from scripts.core.described import Described, differences, make
from scripts.core.device import usable_device
from scripts.core.errors import CheckpointError, DataError
from scripts.core.truth import truth
from scripts.inference.model import FORMAT, VERSION, Fitted, Model
from scripts.inference.objectives import MeanObjective, Objective, SIRObjective
from scripts.networks.backbone import UNetBackbone
from scripts.networks.ensemble import EnsembleNetwork
from scripts.networks.layout import ProposalLayout
from scripts.networks.proposal import ProposalNetwork
from scripts.registration.target import Target, make_target

logger = logging.getLogger(__name__)

BUNDLE = Path(__file__).parents[2]
"""Where weights are looked for that are not in the working directory: MONAI's `load` comes from anywhere."""


def load_model(
    paths: str | Path | Sequence[str | Path],
    device: torch.device | str = "cpu",
    expected: Model | None = None,
    amp: bool = False,
) -> Model:
    """The model of a file; of several files, their ensemble.

    Args:
        paths: of one file, or of several.
        expected: the model of a config, which must agree.
        amp: compute the networks' features in bfloat16.

    Raises:
        CheckpointError: for a file that cannot be read.
        DataError: for one that says something else than the config.
    """
    device = usable_device(device)
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    members = [_load(Path(str(name)).expanduser(), expected) for name in names]
    for member in members:
        member.network.amp = truth("amp", amp)  # type: ignore[assignment]
    if len(members) == 1:
        return members[0].to(device)
    first, others = members[0], members[1:]
    for other in others:
        found = differences(_meaning(first), _meaning(other))
        _refuse(found, str(first.path), str(other.path))
    network = EnsembleNetwork([member.network for member in members])  # type: ignore[misc]
    path = ", ".join(str(member.path) for member in members)
    objective = MeanObjective(first.target, network.layout)  # type: ignore[arg-type]
    return Model(network, objective, first.voxel_mm, path=path).to(device)


def check_description(content: Mapping[str, Any], model: Model, path: str | Path) -> None:
    """Refuse a checkpoint that says something else than the model of a config; those of earlier versions say nothing.

    Raises:
        CheckpointError: for a description of a later version.
        DataError: with the first value that differs, as the one and the other have it.
    """
    described = _description_in(content, path)
    if described is not None:
        own, parts = model.description(), ("voxel_mm", "network", "target")
        found = [difference for part in parts for difference in differences(own[part], described.get(part), part)]
        _refuse(found, "the config", str(path))


def _load(path: Path, expected: Model | None) -> Model:
    if not path.is_file() and (BUNDLE / path).is_file():
        path = BUNDLE / path
    if not path.is_file():
        raise DataError(
            f"weights {path}: there is no such file; name trained weights with --ckpt_path, or the bundle's folder "
            "with --bundle_root"
        )
    content = read(path)
    if expected is not None:
        check_description(content, expected, path)
    described = _description_in(content, path)
    model = _of_earlier_version(path, content, expected) if described is None else _of_description(described)
    load_network(model.network, path)
    model.path = path
    return model


def _description_in(content: Mapping[str, Any], path: str | Path) -> Mapping[str, Any] | None:
    described = description_of(content)
    if described is None:
        return None
    known = isinstance(described, Mapping) and described.get("format") == FORMAT
    if not known or described.get("version", 0) > VERSION:
        raise CheckpointError(path, f"expected a description of version {VERSION} or earlier, got {described}")
    return described


def _of_description(described: Mapping[str, Any]) -> Model:
    network: Any = make(described["network"], Described)
    target = make_target(described["target"])
    objective = make(described["objective"], Objective, target=target, layout=network.layout)  # type: ignore[type-abstract]
    fitted = described.get("fitted")
    fitted = None if fitted is None else Fitted(**fitted)
    return Model(network, objective, described["voxel_mm"], fitted, calibration=described.get("calibration"))


def _of_earlier_version(path: Path, content: Mapping[str, Any], expected: Model | None) -> Model:
    """The model of a file that does not say what it is: that of the config, else what such files usually were."""
    if expected is not None:
        model = Model(copy.deepcopy(expected.network), expected.objective, expected.voxel_mm)
    else:
        logger.warning(
            "weights %s: of an earlier version, which does not say what they mean; taken for S+LC 10L at 2 mm as "
            "configs/train.yaml has it",
            path,
        )
        layout = ProposalLayout(dominance=0.95)
        model = Model(
            ProposalNetwork(layout, UNetBackbone(), factor_level="half"),
            SIRObjective(_usual_target(), layout, num_proposals=32),
        )
    state = content.get("network", content)
    temperature, scale = (float(state.get(name, 0.0)) for name in (FITTED_BEFORE, "weight_scale.value"))
    if temperature > 0:
        model.fitted = Fitted(temperature, scale if scale > 0 else None)
    return model


def _usual_target() -> Target:
    settings = {
        "likelihood": {"kind": "ncc", "window": 5, "sigma": 0.5},
        "prior": {"kind": "diffusion", "weight": 1.0},
        "mean_prior": {"kind": "diffusion", "weight": 2.5},
        "transform": {"kind": "displacement", "factor": 2},
    }
    return make_target(settings)


def _meaning(model: Model) -> dict[str, Any]:
    """What the members of an ensemble have to share."""
    return {"voxel_mm": model.voxel_mm, "target": model.target.settings()}


def _refuse(found: Sequence[tuple[str, Any, Any]], one: str, other: str) -> None:
    if found:
        name, here, there = found[0]
        raise DataError(
            f"{name} is {here!r} in {one}, but {there!r} in the weights {other}: they were trained with that"
        )
