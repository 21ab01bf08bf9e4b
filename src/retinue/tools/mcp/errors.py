"""What goes wrong with servers. Messages go on from "The MCP server NAME …"."""

from __future__ import annotations


class ServerUnavailable(Exception):
    """It cannot be reached, or does not keep to the protocol."""


class ServerLost(Exception):
    """It was gone before it answered: nobody knows whether it did what it was asked."""


class CallRefused(Exception):
    """It answered with an error of the protocol, not with a result."""
