"""Files that other programs read and write: NIfTI, ITK transforms, tables of points."""
