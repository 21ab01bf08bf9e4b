"""Runs, agents and conversations as lines of styled text, without a user interface library."""
