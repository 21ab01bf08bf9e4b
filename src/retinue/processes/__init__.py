"""Starting child processes, watching them, and ending them with everything they started."""
