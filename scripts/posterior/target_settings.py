"""The posterior's likelihood and prior as plain settings, so that a file can say what its weights were made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from scripts.core.errors import DataError
from scripts.registration.local_correlation import MSELikelihood, NCCLikelihood
from scripts.registration.prior import BendingEnergyPrior, DiffusionPrior, HyperelasticPrior
from scripts.registration.target import Target

LIKELIHOODS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "ncc": (NCCLikelihood, ("window", "sigma", "eps")),
    "mse": (MSELikelihood, ("sigma",)),
}
PRIORS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "diffusion": (DiffusionPrior, ("weight",)),
    "bending": (BendingEnergyPrior, ("weight",)),
    "hyperelastic": (HyperelasticPrior, ("length", "area", "volume", "factor")),
}


def target_settings(target: Target) -> dict[str, dict[str, Any]]:
    """What :func:`make_target` needs. The mean's prior and the labels' likelihood are those of trainings only."""
    return {"likelihood": _settings(target.likelihood, LIKELIHOODS), "prior": _settings(target.prior, PRIORS)}


def make_target(settings: Mapping[str, Mapping[str, Any]], transform: nn.Module) -> Target:
    """The posterior of these settings.

    Raises:
        DataError: for settings that are not known here.
    """
    likelihood = _make(settings.get("likelihood", {}), LIKELIHOODS)
    return Target(likelihood, _make(settings.get("prior", {}), PRIORS), transform=transform)


def _settings(module: nn.Module, kinds: Mapping[str, tuple[type[nn.Module], tuple[str, ...]]]) -> dict[str, Any]:
    for kind, (known, names) in kinds.items():
        if type(module) is known:
            return {"kind": kind, **{name: getattr(module, name) for name in names}}
    raise DataError(f"a posterior with {type(module).__name__} cannot be stored")


def _make(settings: Mapping[str, Any], kinds: Mapping[str, tuple[type[nn.Module], tuple[str, ...]]]) -> nn.Module:
    kind = str(settings.get("kind"))
    if kind not in kinds:
        raise DataError(f"expected one of {', '.join(kinds)}, got {kind!r}: was the posterior made by a later version?")
    made, names = kinds[kind]
    return made(**{name: settings[name] for name in names})
