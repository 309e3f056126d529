from __future__ import annotations

import pytest
import torch
from torch import nn

from scripts.engines.optimizer import cosine_decay


def rates(steps: int, **options) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = cosine_decay(optimizer, **options)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_cosine_falls_to_its_final_factor_and_stays():
    found = rates(7, decay_steps=4, final_factor=0.2)
    assert found[0] == 1.0
    assert found[2] == pytest.approx(0.6)
    assert found[4:] == pytest.approx([0.2] * 3)


def test_warm_up_rises_linearly():
    assert rates(5, decay_steps=10**9, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("options", [{"decay_steps": 0}, {"warmup_steps": -1}])
def test_impossible_schedules_are_refused(options):
    with pytest.raises(ValueError, match="decay_steps must be positive and warmup_steps not negative"):
        rates(1, **options)
