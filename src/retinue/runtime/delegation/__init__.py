"""delegation."""
