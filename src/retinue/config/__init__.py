"""Settings, roles, agent files, trust, and the environment variables."""
