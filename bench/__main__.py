"""`python -m bench` in a checkout is `repkernels bench`."""

from .cli import main

if __name__ == "__main__":
    main()
