"""The images' side of the model: fields become displacements, displacements warp images, and both get a log-density.

`parts` says what likelihoods, priors and transforms are; each of these has a file, or several, and `target` joins them.
`warp` moves images and labels on the model's grid, `space` and `pull` on those of the files.
"""
