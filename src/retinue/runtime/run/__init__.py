"""A run from start to outcome, whether a model, a program or a plan leads it."""
