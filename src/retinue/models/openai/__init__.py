"""The chat-completions dialect."""
