"""Files at the border: grids in space, NIfTI, ITK transforms, the posterior on disk."""
