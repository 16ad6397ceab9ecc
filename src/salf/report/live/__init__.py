"""A live run as a page: what was measured (`run`), its charts, and the page itself."""
