"""What a person runs: registering, applying a posterior; their options, folders and messages."""
