"""Sizes of grids and blocks. Triton's own functions of these names take as long as a launch when Python calls them."""


def cdiv(n: int, by: int) -> int:
    """n / by, rounded up."""
    return -(-n // by)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n; 1 for n < 1."""
    return 1 << max(n - 1, 0).bit_length()
