"""Agents whose attempts run on a host: what a run and its hosts tell each other, on both sides."""
