"""What model servers say about the models they serve."""
