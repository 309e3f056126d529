"""How good a registration is, and how honest its uncertainty: overlap, folds, calibration.

Pure functions on tensors first, one file a concept; ``label_samples`` summarizes many warped label maps without keeping
them, and ``metrics`` wraps it all for MONAI and Ignite. None of these knows how the samples were drawn, so that an
ensemble is scored by the same code as the posterior.

From there to the paper's tables: ``pair_report`` scores one pair, ``results`` keeps the scores of many on disk,
``table`` and ``figures`` show them, and ``workflow`` runs it all over a list of pairs.
"""
