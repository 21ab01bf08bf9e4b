"""What the commands print on a terminal, and how they ask questions there."""
