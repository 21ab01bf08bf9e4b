"""server_info."""
