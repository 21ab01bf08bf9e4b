"""The commands, one module each; `main.GROUPS` lists them."""
