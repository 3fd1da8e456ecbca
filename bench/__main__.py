"""`python -m bench` in a checkout is `repkernels bench`."""

from .cli import main

main()
