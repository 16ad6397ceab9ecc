"""Small helpers that know nothing of federated learning: errors, files, options, the process."""
