"""Benchmarks: one registry, one command line, results kept as JSON with the device's name."""
