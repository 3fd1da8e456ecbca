"""Functions measured in double-double arithmetic over all their fp32 inputs, by methods that the library does not use.

Runs on a GPU, or on a CPU in Triton's interpreter. Start it by `python -m bench.prove_functions`.
"""
