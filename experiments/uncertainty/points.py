"""`python -m experiments.uncertainty.points`: how far experts' points are from where samples put them.

    python -m experiments.uncertainty.points --dataset_dir /data/oasis1mm --landmarks_dir /data/landmarks [--write FILE]

Fits covariance = scale² · samples', beside the raters' own error, on all pairs of people that have points and are not
test people; then leaves each person out in turn.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import fire
import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2

from experiments.uncertainty.people import people
from experiments.uncertainty.registered import register
from scripts.evaluation.fit_temperature import write_fitted
from scripts.evaluation.landmark_scores import Errors, LandmarkFolder, landmark_errors, mahalanobis
from scripts.inference.model_file import load_model
from scripts.posterior.calibrated import Calibration, PointErrors
from scripts.posterior.spread import named_spread

LIMIT = float(chi2.ppf(0.95, 3))


def main(
    dataset_dir: str, landmarks_dir: str, num_samples: int = 80, spread: str = "curvature", write: str | None = None
) -> None:
    """Register all ordered pairs of people with points, fit and check."""
    folder, known = Path(dataset_dir), LandmarkFolder(landmarks_dir)
    # Of one person's two scans either may have points.
    held_out = set(people("test")) | set(people("val"))
    names = sorted(path.stem for path in known.folder.glob("OASIS*.csv") if path.stem not in held_out)
    found: dict[tuple[str, str], tuple[Errors, np.ndarray]] = {}
    for fixed, moving in itertools.permutations(names, 2):
        marks = known.marks(fixed, moving)
        assert marks is not None
        posterior = register(folder, fixed, moving).posterior(named_spread(spread), num_samples)
        errors = landmark_errors(posterior, marks)
        found[fixed, moving] = (errors, marks.variance)
        tre = np.linalg.norm(errors.after, axis=1).mean()
        print(f"{moving} to {fixed}: {np.linalg.norm(errors.before, axis=1).mean():.2f} -> {tre:.2f} mm", flush=True)
    distances = np.concatenate([np.linalg.norm(errors.after, axis=1) for errors, _ in found.values()])
    widths = np.concatenate([np.sqrt(np.trace(errors.covariance, axis1=1, axis2=2)) for errors, _ in found.values()])
    order = np.corrcoef(distances.argsort().argsort(), widths.argsort().argsort())[0, 1]
    print(f"TRE {distances.mean():.3f} mm, Spearman of spread and error {order:.2f}")
    print(f"as sampled: {_inside(found, PointErrors()):.3f} inside 95 % with the raters' error")
    for person in names:
        others = {pair: values for pair, values in found.items() if person not in pair}
        own = {pair: values for pair, values in found.items() if person in pair}
        fitted = fit(others)
        print(f"without {person}: {fitted}, {_inside(own, fitted):.3f} of its own inside")
    fitted = fit(found)
    print(
        f"all: {fitted}, {_inside(found, fitted):.3f} inside, {_inside(found, fitted, raters=False):.3f} without raters"
    )
    if write is not None:
        model = load_model(write)
        before = Calibration.of(model.calibration)
        notes = {**before.notes, "points": f"{len(names)} people, {len(found)} pairs, {len(distances)} points, 1 mm"}
        model.calibration = Calibration(before.spread, before.volumes, fitted, before.failure, notes).plain()
        write_fitted(model, Path(write))


def fit(found: dict[tuple[str, str], tuple[Errors, np.ndarray]]) -> PointErrors:
    """The scale with which 95 % of the points lie in their 95 % ellipsoids, raters' error included.

    By maximum likelihood of Gaussian errors it was smaller, with 90 % inside: few errors are large.
    """
    scale = brentq(lambda value: _inside(found, PointErrors(value)) - 0.95, 0.2, 20.0, xtol=1e-3)
    return PointErrors(round(float(scale), 3))


def _inside(found: dict[tuple[str, str], tuple[Errors, np.ndarray]], errors: PointErrors, raters: bool = True) -> float:
    inside = []
    for known, variance in found.values():
        whole = errors.covariance(known.covariance) + (raters * variance)[:, None, None] * np.eye(3)
        inside.append(mahalanobis(known.after, whole) <= LIMIT)
    return float(np.mean(np.concatenate(inside)))


if __name__ == "__main__":
    fire.Fire(main)
