"""scripted."""
