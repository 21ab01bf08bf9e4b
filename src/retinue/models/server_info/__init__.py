"""Asks model servers about the models that they serve."""
