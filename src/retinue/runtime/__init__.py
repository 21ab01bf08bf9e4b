"""The runtime: runs agents from a task to an outcome, and records everything in a journal."""
