"""Real deadlines on real processes."""
