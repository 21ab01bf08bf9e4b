"""`python -m retinue`: the command, where it is not on the PATH."""

from retinue.interfaces.cli.main import main

main()
