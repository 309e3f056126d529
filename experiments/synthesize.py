"""Write a cohort of synthetic brains to disk, in the layout of neurite-OASIS.

    python -m experiments.synthesize --output_dir data/synthetic --subjects 20

It stands in for real data wherever the layout is expected: one folder a person with ``aligned_norm.nii.gz`` and
``aligned_seg35.nii.gz``, and ``split.json`` with the lists train, val and test.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import nibabel as nib
import numpy as np

from scripts.core.atomic import atomic_path, write_text
from scripts.core.progress import Progress
from scripts.synthetic.subjects import Subject, cohort_seeds, synthesize_subject

#: Edges in mm of the volume, the same at every spacing.
EXTENT = (160, 192, 224)
#: Beyond the numbers of the real cohort, so that nobody takes a synthetic brain for a real person.
FIRST_ID = 9001


def split_subjects(names: Sequence[str]) -> dict[str, list[str]]:
    """Divide at least three people into train, val and test: about 15 % each for val and test, at least one."""
    if len(names) < 3:
        raise ValueError(f"a cohort needs at least 3 subjects (train, val, test), got {len(names)} instead")
    held_out = max(1, round(0.15 * len(names)))
    train = len(names) - 2 * held_out
    return {
        "train": list(names[:train]),
        "val": list(names[train : train + held_out]),
        "test": list(names[train + held_out :]),
    }


def write_cohort(output_dir: Path, num_subjects: int, spacing: float = 2.0, seed: int = 0) -> dict[str, list[str]]:
    """Make the people one by one and write them; ``split.json`` comes last and marks the cohort as complete.

    Args:
        output_dir: folder for the cohort, made if missing. Files of the same name are replaced.

    Returns:
        What ``split.json`` holds: the names of the people's folders in each part.

    Raises:
        ValueError: when an argument does not describe a cohort.
    """
    if not 0 < spacing <= min(EXTENT):
        raise ValueError(f"spacing must be in mm, more than 0 and at most {min(EXTENT)}, got {spacing} instead")
    names = [f"OASIS_OAS1_{FIRST_ID + index:04d}_MR1" for index in range(num_subjects)]
    split = split_subjects(names)
    shape = tuple(round(edge / spacing) for edge in EXTENT)
    seeds = cohort_seeds(num_subjects, seed)
    with Progress("brains", num_subjects) as advance:
        for done, (name, subject_seed) in enumerate(zip(names, seeds, strict=True), 1):
            write_subject(synthesize_subject(subject_seed, shape, spacing), output_dir / name)
            advance(done)
    write_text(output_dir / "split.json", json.dumps(split, indent=1))
    return split


def write_subject(subject: Subject, folder: Path) -> None:
    """Write a person's image (8 bits with slope 1/255, read as 0..1) and labels."""
    image = nib.Nifti1Image(np.round(subject.image * 255).astype(np.uint8), subject.affine)
    image.header.set_slope_inter(1 / 255, 0)
    label = nib.Nifti1Image(subject.label, subject.affine)
    for name, volume in (("aligned_norm.nii.gz", image), ("aligned_seg35.nii.gz", label)):
        volume.header.set_xyzt_units("mm")
        with atomic_path(folder / name) as part:
            volume.to_filename(part)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.synthesize", description="Write synthetic brains to disk."
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for the cohort, made if missing")
    parser.add_argument("--subjects", type=int, required=True, help="how many people, at least 3")
    parser.add_argument("--spacing", type=float, default=2.0, help="edge of a voxel in mm (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other people (default: 0)")
    options = parser.parse_args(arguments)
    try:
        split = write_cohort(options.output_dir, options.subjects, options.spacing, options.seed)
    except (ValueError, OSError) as error:
        print(f"synthesize: {error}", file=sys.stderr)
        return 2
    counts = ", ".join(f"{len(people)} {part}" for part, people in split.items())
    print(f"Wrote {options.subjects} synthetic brains ({counts}) at {options.spacing:g} mm to {options.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
