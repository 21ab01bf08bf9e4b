"""Settings, roles, and everything that is read from the environment."""
