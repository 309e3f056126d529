"""How much one image tells about another under an affine map: their mutual information."""

from __future__ import annotations

import numpy as np

from scripts.alignment.working import WorkingImage

_BINS = 32
_LEAST_KNOWN = 0.3
"""Part of the fixed brain about which the moving image must say something."""


class MutualInformation:
    """Mutual information of two images in nats, as a function of the map between them.

    Taken over the whole fixed working image, with background wherever the moving image does not reach, so that values
    can be compared between maps: a map that moves the brain out of sight has 0. (ITK's own metric leaves out what falls
    outside of the moving image, which makes it blind to that.) Only what lies beyond a face that cuts a brain is left
    out, and if that is most of the fixed brain, the map is worth nothing.

    The samples are jittered within their voxels: on the voxels' centers, maps that need no interpolation would seem
    better than they are.
    """

    def __init__(self, fixed: WorkingImage, moving: WorkingImage, seed: int = 0) -> None:
        jitter = np.random.default_rng(seed).uniform(-0.5, 0.5, (fixed.values.size, 3))
        voxels = np.indices(fixed.values.shape).reshape(3, -1).T
        points = (voxels + jitter) * fixed.spacing + fixed.origin
        known = fixed.sample_known(points)
        self.points = points[known]  # (N, 3)
        self.moving = moving
        self.brain = fixed.brain.ravel()[known]
        self.fixed_bins = np.minimum(fixed.sample(self.points) * _BINS, _BINS - 1).astype(np.intp)

    def __call__(self, matrix: np.ndarray) -> float:
        """The mutual information under `matrix` (4, 4), from fixed to moving RAS mm."""
        points = self.points @ matrix[:3, :3].T + matrix[:3, 3]
        known = self.moving.sample_known(points)
        if np.count_nonzero(known & self.brain) <= _LEAST_KNOWN * np.count_nonzero(self.brain):
            return 0.0
        moving_bins = np.minimum(self.moving.sample(points) * _BINS, _BINS - 1).astype(np.intp)
        pairs = (self.fixed_bins * _BINS + moving_bins)[known]
        joint = np.bincount(pairs, minlength=_BINS * _BINS).reshape(_BINS, _BINS)
        p = joint / joint.sum()
        independent = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
        filled = p > 0
        return float((p[filled] * np.log(p[filled] / independent[filled])).sum())
