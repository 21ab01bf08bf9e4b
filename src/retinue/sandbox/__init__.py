"""Where an agent's shell commands run."""
