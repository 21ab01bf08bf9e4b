"""Models that follow a script, for tests and demonstrations."""
