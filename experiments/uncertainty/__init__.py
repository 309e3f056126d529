"""What spread a registration should have: fitted on training people, held against the simplest ones there are."""
