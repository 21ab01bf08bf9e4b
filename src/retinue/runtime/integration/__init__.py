"""Bring the work of a child from its copy into its parent's files: merge, conflicts, checks."""
