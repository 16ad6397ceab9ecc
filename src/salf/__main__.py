"""`python -m salf` is the command `salf`."""

from salf.cli import main

main()
