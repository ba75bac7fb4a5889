"""`python -m halocast` is the command line."""

from halocast.cli import main

main()
