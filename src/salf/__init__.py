"""salf."""
