"""Who is tuned on: the training people of OASIS, one scan each. Test people never come in here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.data.datalist import subject_pairs

SPLIT = Path(__file__).parents[2] / "configs/splits/oasis.json"


def people(split: str = "train") -> list[str]:
    """Folders of a part's people; of a person who was scanned twice, the first scan."""
    content: dict[str, Any] = json.loads(SPLIT.read_text(encoding="utf-8"))
    second = {pair[1] for pair in content["same_person"]}
    return [name for name in content[split] if name not in second]


def pairs(step: int = 4, split: str = "train") -> list[tuple[str, str]]:
    """(fixed, moving): everybody is the fixed one once, and the moving one of somebody else once."""
    names = people(split)
    return [(name, names[(i + step) % len(names)]) for i, name in enumerate(names)]


def tested(split: str, count: int) -> list[tuple[str, str]]:
    """(fixed, moving) as `run evaluation --num_pairs` draws them."""
    subjects: list[Any] = [{"name": name, "cohort": "oasis", "person": name} for name in people(split)]
    return [(subjects[fixed]["name"], subjects[moving]["name"]) for fixed, moving in subject_pairs(subjects, count)]
