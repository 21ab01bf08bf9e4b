"""Sandboxes that confine the shell commands of agents."""
