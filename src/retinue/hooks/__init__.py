"""Hooks: run the user's programs and functions on events, and read their answers."""
