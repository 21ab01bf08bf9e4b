"""What goes wrong with servers. Messages go on from "The MCP server NAME …"."""

from __future__ import annotations


class Unusable(Exception):
    """It cannot be reached, or does not keep to the protocol."""


class Lost(Exception):
    """It was gone before it answered: nobody knows whether it did what it was asked."""


class Refused(Exception):
    """It answered with an error of the protocol, not with a result."""
