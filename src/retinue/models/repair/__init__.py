"""Repairs the tool calls of weak models."""
