"""What the weighted fields of one pair say, in the fixed image's space: moments, folds, labels, volumes, modes."""
