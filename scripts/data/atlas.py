"""One image in, a pair out: the scan that a viewer sends is fixed, an atlas with labels moves onto it.

MONAI Label hands over a single image under `image`; the preprocessing of pairs starts with :class:`AtlasPaird`, so that
the same chain serves files of a pair and an image of a viewer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from monai.transforms import Transform

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.core.pair_keys import FROM_VIEWER, stem
from scripts.files.nifti import write_volume
from scripts.synthetic.subjects import synthesize_subject

EXAMPLE_ATLAS_SEED = 2030
"""Of the synthetic person who is the example atlas; in no cohort that trainings draw from, nor in the example pair."""
_NOTHING = (None, "", "null", "None")


class AtlasPaird(Transform):
    """Make a pair of an item that has one image: `image` becomes `fixed`, the atlas `moving` and `moving_label`.

    Items that have a `fixed` image already are pairs and stay as they are.

    Args:
        image: path of the atlas image; None or empty for the example atlas.
        label: path of the atlas labels, on the image's grid.
        example_dir: where the example atlas is written when it is first needed; the folder for temporary files if this
            one cannot be written.

    Raises:
        DataError: for an atlas image without labels or the other way round.
    """

    def __init__(self, image: str | None = None, label: str | None = None, example_dir: str = "output/atlas") -> None:
        self.image, self.label, self.example_dir = image, label, Path(example_dir)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Make one pair."""
        item = dict(data)
        if "fixed" in item:
            return item
        item["fixed"] = str(item["image"])
        item["moving"], item["moving_label"] = self.files()
        item[FROM_VIEWER] = item["moving"]
        names = {"moving_name": item["moving"], "fixed_name": item.get("image_path", item["image"])}
        return {**item, **{key: stem(str(path)) for key, path in names.items()}}

    def files(self) -> tuple[str, str]:
        """Paths of the atlas image and its labels."""
        given = [path not in _NOTHING for path in (self.image, self.label)]
        if all(given):
            return str(Path(str(self.image)).expanduser()), str(Path(str(self.label)).expanduser())
        if any(given):
            raise DataError("an atlas is an image and its labels: give both atlas and atlas_labels, or neither")
        try:
            return example_atlas(self.example_dir)
        except DataError:
            return example_atlas(Path(tempfile.gettempdir()) / "structured_sir_atlas")


def example_atlas(folder: Path) -> tuple[str, str]:
    """Paths of the example atlas, a synthetic brain of 2 mm with seg35 labels, which is written if not there yet."""
    paths = folder / "atlas.nii.gz", folder / "atlas_labels.nii.gz"
    if not all(path.is_file() for path in paths):
        subject = synthesize_subject(seed=EXAMPLE_ATLAS_SEED)
        grid = Grid(tuple(subject.image.shape), subject.affine)
        for path, values in zip(paths, (subject.image, subject.label), strict=True):
            write_volume(path, values, grid)
    return str(paths[0]), str(paths[1])
