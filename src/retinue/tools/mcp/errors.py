"""Errors of MCP servers. Each message continues the sentence "The MCP server NAME …"."""

from __future__ import annotations


class ServerUnavailable(Exception):
    """The server cannot be reached, or violates the protocol."""


class ServerLost(Exception):
    """The server ended before it answered. The call may have taken effect."""


class CallRefused(Exception):
    """The server answered a call with a protocol error."""
