"""The commands, one module each; `main.COMMANDS` lists them."""
