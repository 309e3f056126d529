"""What an expert knows about a registered pair: corresponding points, corrected labels."""
