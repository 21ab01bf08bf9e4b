"""Models behind HTTP APIs: what all dialects share."""
