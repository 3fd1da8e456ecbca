"""Training runs whose every bit is repeated on every machine: `python -m examples.digits_cnn --help`."""
