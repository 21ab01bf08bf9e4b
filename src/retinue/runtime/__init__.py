"""What makes a run happen."""
