"""Tools that agents can call: the built-in ones, those from functions, and the registry."""
