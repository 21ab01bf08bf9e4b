"""An MCP server: other agents delegate work to retinue's children."""
