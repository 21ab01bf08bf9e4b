"""Where an agent's file tools act: safe opening, searching, writing, and git."""
