"""What a terminal shows of runs, free of any library that draws: rows, columns, figures, blocks."""
