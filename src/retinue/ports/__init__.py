"""Interfaces between the runtime and its adapters, as plain protocols.

Adapters implement these without importing each other; `app` puts them together.
"""
