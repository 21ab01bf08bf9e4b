"""An index of the definitions in a tree of source files, and of the names that each file uses."""
