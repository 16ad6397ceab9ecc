"""Small helpers that know nothing of federated learning: errors, files, names, options, the process."""
