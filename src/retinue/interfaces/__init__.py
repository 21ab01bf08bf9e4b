"""User interfaces: the command line, the chat, and the views that both draw."""
