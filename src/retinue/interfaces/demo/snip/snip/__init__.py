"""A URL shortener."""
