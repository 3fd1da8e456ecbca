"""reference/formats.py, digest.py and philox.py against hand-made cases and torch's conversions."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import digest, formats, philox

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("dtype", HALF)
def test_rounding_equals_torch(dtype):
    """Every exponent with significands around ties, and what surrounds the largest value."""
    fractions = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF], np.uint32)
    exponents = np.arange(256, dtype=np.uint32) << np.uint32(23)
    pattern = (exponents[:, None] | fractions).reshape(-1)
    values = np.concatenate([pattern, pattern | np.uint32(1 << 31)]).view(np.float32)
    found = formats.bits(formats.rounded(values, dtype), dtype)
    wanted = torch.from_numpy(values).to(HALF[dtype])
    signed = torch.where(wanted.isnan(), torch.full_like(wanted, float("nan")), wanted).view(torch.int16).numpy()
    np.testing.assert_array_equal(found, signed.view(np.uint16))


@pytest.mark.parametrize("dtype", HALF)
def test_every_pattern_survives(dtype):
    pattern = np.arange(65536, dtype=np.uint16)
    values = formats.from_bits(pattern, dtype)
    back = formats.bits(formats.rounded(values, dtype), dtype)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(back[number], pattern[number])
    assert len(set(back[~number].tolist())) == 1


def test_digest_of_hand_made_bytes():
    data = b"tensor\0float32\0" + b"1,2\0" + bytes([0, 0, 0xC0, 0x3F, 0, 0, 0xC0, 0x7F])
    assert digest.tensor(np.array([[1.5, -np.nan]], np.float32), "float32") == hashlib.sha256(data).hexdigest()
    data = b"tensor\0bfloat16\0\0" + bytes([0x80, 0x3F])
    assert digest.tensor(np.float32(1), "bfloat16") == hashlib.sha256(data).hexdigest()


def test_digest_tells_zeros_shapes_and_formats_apart():
    values = np.zeros((2, 3), np.float32)
    found = {
        digest.tensor(values, "float32"),
        digest.tensor(-values, "float32"),
        digest.tensor(values.T, "float32"),
        digest.tensor(values, "float16"),
        digest.tensor(values, "bfloat16"),
    }
    assert len(found) == 5


# Known answers of the generator's authors (Random123, kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, words):
    assert tuple(int(w) for w in philox.block(tuple(np.array(c) for c in counter), key)) == words


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 40), st.integers(0, 40))
def test_a_shorter_draw_is_a_prefix(seed, stream, first, second):
    short, long = sorted((first, second))
    np.testing.assert_array_equal(philox.words(seed, stream, short), philox.words(seed, stream, long)[:short])


def test_permutation_and_uniform():
    order = philox.permutation(0, 0, 1797)
    assert sorted(order.tolist()) == list(range(1797))
    drawn = philox.uniform(3, 1, 10000, -0.125, 0.125)
    assert drawn.dtype == np.float32
    assert -0.125 <= drawn.min() < -0.12
    assert 0.12 < drawn.max() < 0.125
