"""Tools of MCP servers: their processes and connections, and what models are shown of them."""
