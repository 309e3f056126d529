"""What `python -m monai.bundle run …` runs on new files: registering pairs, applying their posteriors."""
