"""Reads back what journals hold: audits, sessions, resume, undo, the result cache, pruning."""
