"""Binary64 numbers as they are written down: in hexadecimal, so that no decimal conversion takes part."""


def numbers(*hexadecimal: str) -> tuple[float, ...]:
    return tuple(float.fromhex(text) for text in hexadecimal)


def patches(*pairs: tuple[str, str]) -> tuple[tuple[int, float], ...]:
    """(fp32 bits as int32, result) of ("bits in hexadecimal", "result in hexadecimal")."""
    return tuple(((int(bits, 16) ^ 0x80000000) - 0x80000000, float.fromhex(result)) for bits, result in pairs)
