"""Benchmarks: one registry, one command line, results kept as JSON with the machine's name."""
