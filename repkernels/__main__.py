"""`python -m repkernels` is the command line."""

from repkernels.cli import main

if __name__ == "__main__":
    main()
