from __future__ import annotations

import math
import statistics

import pytest
import torch

from scripts.inference.objectives import ImportanceObjective
from tests.gaussian.conftest import random_gaussian
from tests.inference.conftest import VOXELS, apply, layout_of, random_raw
from tests.inference.toy import GRID, image_of


class TestImportance:
    def test_more_samples_raise_the_bound_towards_the_evidence(self, toy):
        target, y = toy
        layout = layout_of("LC")
        # A proposal near the posterior, but without its couplings: from far away the bound would hardly move.
        exact = random_gaussian("LC", 1, GRID)
        raw = torch.zeros(1, layout.out_channels, *GRID, dtype=torch.float64)
        raw[:, :3] = exact.mean + 0.2
        raw[:, 3:6] = (exact.stencil_parameters[:, :3] * layout.stencil.initial_std * math.log(2)).expm1().log()
        raw[:, 48:] = exact.cov_factor.flatten(1, 2)
        seeds, means, errors = range(60), [], []
        for count in (1, 4, 16):
            objective = ImportanceObjective(target, layout, num_samples=count)
            bounds = [-VOXELS * float(apply(objective, raw, y, seed)) for seed in seeds]
            means.append(statistics.mean(bounds))
            errors.append(statistics.stdev(bounds) / math.sqrt(len(seeds)))
        for k in (0, 1):
            assert means[k + 1] - means[k] > 3 * math.hypot(errors[k], errors[k + 1])
        assert means[-1] < float(target.log_evidence(y)) + 5 * errors[-1]

    def test_effective_sample_size_is_a_share(self, toy):
        target, y = toy
        layout = layout_of("LC")
        moving = image_of(y)
        outcome = ImportanceObjective(target, layout, num_samples=8)(random_raw(layout), moving, moving, 0)
        assert 1 / 8 <= outcome.figures["ess"] <= 1
        one = ImportanceObjective(target, layout, num_samples=1)(random_raw(layout), moving, moving, 0)
        assert one.figures["ess"] == pytest.approx(1.0)
