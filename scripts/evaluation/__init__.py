"""How good a registration is, and how honest its uncertainty: overlap, folds, calibration.

Pure functions on tensors, one file a concept; ``label_samples`` summarizes many warped label maps without keeping them,
and ``metrics`` wraps it all for MONAI and Ignite. Nothing here knows how the samples were drawn, so that an ensemble is
scored by the same code as the posterior.
"""
