"""The files that agents work on: reading, searching, writing, copies, merges and undo."""
