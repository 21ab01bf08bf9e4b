"""What an agent can do: tools from plain functions, the registry, and the built-in ones."""
