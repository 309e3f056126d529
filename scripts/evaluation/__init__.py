"""How good a registration is, and how honest its uncertainty: overlap, folds, calibration.

Pure functions on tensors first, one file a concept; `ignite_metrics` wraps them for MONAI and Ignite.

From there to the paper's tables: `pair_report` scores the posterior of one pair, `evaluator` runs over a list of pairs,
`results` keeps their scores on disk, `summary_table` and `plots` show them. `fit_temperature` uses the same samples to
choose a temperature. All posteriors come from :class:`~scripts.posterior.sampler.Sampler`.
"""
