"""A Gaussian over 3-D displacement fields: linear algebra only; knows neither images nor MONAI.

`Stencil` says which entries L has, `StencilCholesky` computes with L, `StructuredGaussian` is the distribution.
"""

from scripts.gaussian.cholesky import StencilCholesky
from scripts.gaussian.distribution import Noise, StructuredGaussian
from scripts.gaussian.stencil import Stencil

__all__ = ["Noise", "Stencil", "StencilCholesky", "StructuredGaussian"]
