"""Datasets of image pairs.

A subject is loaded once, however many pairs it is in. What a training item is depends on nothing but the seed and the
item's number: not on the number of workers or processes, nor on what was drawn before, so a resumed run goes on with
exactly the items that it would have had. Item k belongs to epoch k // n of n pairs each;
:class:`~scripts.data.samplers.EpochSampler` hands out the numbers of one epoch after the other.

    dataset = RandomPairDataset(subjects, load_transforms(), pairs_per_epoch=200, transform=pair_transforms())
    loader = DataLoader(dataset, sampler=EpochSampler(dataset), num_workers=2, collate_fn=list_data_collate)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor, get_track_meta, set_track_meta
from monai.transforms import Randomizable
from torch import Tensor
from torch.utils.data import Dataset

from scripts.core.errors import DataError, shorten
from scripts.data.datalist import Pair, subject_pairs
from scripts.data.dataset_folders import Scan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Cached:
    """A loaded subject without what MONAI remembers about transforms: image and label [1, X, Y, Z], affine [4, 4]."""

    image: Tensor
    label: Tensor | None
    affine: Tensor
    file: str


class PairDataset(Dataset):
    """A fixed list of pairs, for evaluation.

    Each item is ``{"fixed", "moving", "fixed_label", "moving_label", "fixed_name", "moving_name"}`` with volumes
    [1, X, Y, Z] as ``MetaTensor`` (plain tensors under ``set_track_meta(False)``): float32 images, int32 labels.
    A subject without a label map leaves its key out.

    Args:
        load: deterministic transform of a scan, as from :func:`~scripts.data.transforms.load_transforms`.
        transform: random transform of a pair, after the cache.
        seed: of ``transform``: item k is always transformed in the same way.
        cache_dtype: of cached images. float16 holds [0, 1] to 2.5e-4, far below a scanner's noise, in half the memory;
            labels take the smallest integer type that holds them.
        preload: load all subjects now. With worker processes, do: they share what was loaded before they started,
            while each would fill a cache of its own otherwise.

    Raises:
        ValueError: when a pair names a subject that does not exist.
    """

    def __init__(
        self,
        subjects: Sequence[Scan],
        load: Callable[[Any], Any],
        pairs: Sequence[Pair] | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        seed: int = 0,
        cache_dtype: str = "float16",
        preload: bool = False,
    ) -> None:
        self.subjects, self.load, self.transform = subjects, load, transform
        self.pairs = [(int(i), int(j)) for i, j in (subject_pairs(subjects) if pairs is None else pairs)]
        wrong = [pair for pair in self.pairs if not (min(pair) >= 0 and max(pair) < len(subjects))]
        if wrong or not self.pairs:
            raise ValueError(f"pairs must be indices into {len(subjects)} subjects, got {wrong[:3] or 'no pair'}")
        self.seed, self.cache_dtype = seed, getattr(torch, cache_dtype)
        self._cache: dict[int, _Cached] = {}
        self._warned, self._labeled = False, True
        if preload:
            for index in sorted({index for pair in self.pairs for index in pair}):
                self._subject(index)

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[k] for k in range(len(self)))

    def pair(self, k: int) -> Pair:
        """Indices (fixed, moving) of the subjects of item k."""
        return self.pairs[k]

    def __getitem__(self, k: int) -> dict[str, Any]:
        fixed, moving = self.pair(k)
        item = {**self._item(fixed, "fixed"), **self._item(moving, "moving")}
        self._check_frames(item)
        if self.transform is None:
            return item
        if isinstance(self.transform, Randomizable):
            state = np.random.SeedSequence((self.seed, 1, k)).generate_state(1, np.uint32)
            self.transform.set_random_state(seed=int(state[0]))
        return self.transform(item)

    def _subject(self, index: int) -> _Cached:
        if index in self._cache:
            return self._cache[index]
        tracked = get_track_meta()
        # Whoever wants plain tensors still needs them oriented, which takes the affine.
        set_track_meta(True)
        try:
            item = self.load(dict(self.subjects[index]))
        finally:
            set_track_meta(tracked)
        image, label = item["image"], item.get("label")
        self._cache[index] = _Cached(
            image=image.as_subclass(Tensor).to(self.cache_dtype),
            # A path that ``load`` was not asked to load is no label map.
            label=_compact(label.as_subclass(Tensor)) if isinstance(label, Tensor) else None,
            affine=image.affine if isinstance(image, MetaTensor) else torch.eye(4, dtype=torch.float64),
            file=str(self.subjects[index].get("image", self.subjects[index]["name"])),
        )
        return self._cache[index]

    def _item(self, index: int, role: str) -> dict[str, Any]:
        """Copies of a subject's volumes under the names of its role: transforms that work in place miss the cache."""
        subject = self._subject(index)

        def volume(values: Tensor, dtype: torch.dtype) -> Tensor:
            values = values.to(dtype, copy=True)
            if not get_track_meta():
                return values
            return MetaTensor(values, affine=subject.affine.clone(), meta={"filename_or_obj": subject.file})

        item: dict[str, Any] = {role: volume(subject.image, torch.float32)}
        if subject.label is not None and self._labeled:
            item[f"{role}_label"] = volume(subject.label, torch.int32)
        item[f"{role}_name"] = self.subjects[index]["name"]
        return item

    def _check_frames(self, item: dict[str, Any]) -> None:
        fixed, moving = item["fixed"], item["moving"]
        names = f"{item['fixed_name']} and {item['moving_name']}"
        if fixed.shape != moving.shape:
            raise DataError(
                f"{names} have shapes {tuple(fixed.shape[1:])} and {tuple(moving.shape[1:])}: set roi_size (and pixdim)"
            )
        if self._warned or not isinstance(fixed, MetaTensor):
            return
        corners = fixed.affine.new_tensor([[0, 0, 0, 1], [*(size - 1 for size in fixed.shape[1:]), 1]]).T
        gap = float(((fixed.affine - moving.affine) @ corners).abs().max())
        if gap > 2.0 * float(fixed.pixdim.max()):
            self._warned = True
            logger.warning("%s lie up to %.0f mm apart in space; pairs are compared voxel by voxel", names, gap)


class FilePairDataset(PairDataset):
    """A fixed list of pairs of files, prepared one by one as `run inference` does; for evaluation.

    Each item is what ``transform`` makes of the paths ``{"fixed", "moving", "fixed_label", "moving_label"}``, with
    ``fixed_name`` and ``moving_name``. Nothing is kept: alignment belongs to a pair, not to a subject.

    Raises:
        DataError: for scans that are no files.
    """

    def __init__(
        self, subjects: Sequence[Scan], transform: Callable[[Any], Any], pairs: Sequence[Pair] | None = None
    ) -> None:
        super().__init__(subjects, dict, pairs, transform=transform)
        if unsaved := [scan["name"] for scan in subjects if "image" not in scan]:
            raise DataError(f"expected files, see --dataset_dir; got synthetic scans: {shorten(unsaved)}")

    def __getitem__(self, k: int) -> dict[str, Any]:
        item: dict[str, Any] = {}
        for role, index in zip(("fixed", "moving"), self.pair(k), strict=True):
            scan = self.subjects[index]
            item |= {f"{role}_name": scan["name"], role: scan["image"]}
            if "label" in scan:
                item[f"{role}_label"] = scan["label"]
        assert self.transform is not None
        return self.transform(item)


class RandomPairDataset(PairDataset):
    """Endless pairs in random order, for training: any item number is valid, ``len`` is one epoch.

    An epoch is a random part of all pairs, none of them twice unless it is longer than the list. Items have label maps
    only if all subjects have them.

    Args:
        subjects, load, options: as in :class:`PairDataset`; ``seed`` also decides the order.
        pairs_per_epoch: how many pairs are an epoch; None for all.
        balance_cohorts: draw each cohort equally often (with replacement), however many pairs it has.

    Raises:
        ValueError: when ``pairs_per_epoch`` is not positive.
    """

    def __init__(
        self,
        subjects: Sequence[Scan],
        load: Callable[[Any], Any],
        pairs: Sequence[Pair] | None = None,
        pairs_per_epoch: int | None = None,
        balance_cohorts: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(subjects, load, pairs, **options)
        if pairs_per_epoch is not None and pairs_per_epoch < 1:
            raise ValueError(f"pairs_per_epoch must be positive, got {pairs_per_epoch} instead")
        self.pairs_per_epoch = pairs_per_epoch or len(self.pairs)
        # Items of a batch must have the same keys.
        self._labeled = all("label" in subject or "synthetic" in subject for subject in subjects)
        cohorts = [subjects[fixed]["cohort"] for fixed, _ in self.pairs]
        counts = Counter(cohorts)
        self._odds = np.array([1 / counts[c] / len(counts) for c in cohorts]) if balance_cohorts else None
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=int))

    def __len__(self) -> int:
        return self.pairs_per_epoch

    def order(self, epoch: int) -> np.ndarray:
        """Positions in ``pairs`` that make up an epoch, int [pairs_per_epoch]; a function of seed and epoch only."""
        if self._order[0] != epoch:
            rng = np.random.default_rng((self.seed, 0, epoch))
            count, length = len(self.pairs), self.pairs_per_epoch
            if self._odds is not None:
                drawn = rng.choice(count, length, p=self._odds)
            else:
                rounds = -(-length // count)
                drawn = np.concatenate([rng.permutation(count) for _ in range(rounds)])[:length]
            self._order = (epoch, drawn)
        return self._order[1]

    def pair(self, k: int) -> Pair:
        """Indices (fixed, moving) of the subjects of item k ≥ 0."""
        if k < 0:
            raise IndexError(f"item numbers start at 0, got {k}")
        epoch, position = divmod(k, self.pairs_per_epoch)
        return self.pairs[self.order(epoch)[position]]


def _compact(label: Tensor) -> Tensor:
    """A label map in the smallest integer type that holds its values."""
    largest = int(label.max())
    return label.to(torch.uint8 if largest < 256 else torch.int16 if largest < 2**15 else torch.int32)
