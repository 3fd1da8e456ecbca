"""`python -m repkernels` is the command line."""

from repkernels.cli import main

main()
