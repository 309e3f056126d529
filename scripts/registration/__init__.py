"""The images' side of the model: fields become displacements, displacements warp images, and both get a log-density.

`transform` (with `spline`) takes a field from its grid to the image's, `warp` moves images and labels, `similarity` has
the likelihoods, `prior` the smoothness energies. Pure functions with thin modules over them for configs.
"""
