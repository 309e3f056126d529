"""What all packages stand on: named errors, grids, safe files, processes, progress. Knows nothing of registration."""
