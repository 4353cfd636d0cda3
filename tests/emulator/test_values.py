"""Python values as Metal values."""

import numpy as np
import pytest

from mlx_tensorops.testing.emulator.values import pack


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", -2, np.int32(-2)),
        ("const int", 3, None),
        ("int&", 3, np.int32(3)),
        ("unsigned int", 2**32 - 1, np.uint32(2**32 - 1)),
        ("int64_t", -(2**40), np.int64(-(2**40))),
        ("size_t", 2**63, np.uint64(2**63)),
        ("bool", True, np.bool_(True)),
        ("uchar", 255, np.uint8(255)),
        ("half", 0.1, np.float16(0.1)),
        ("float", 0.1, np.float32(0.1)),
        ("metal::uint2", (1, 2), np.array([1, 2], np.uint32)),
        ("float3", (1, 2, 3), np.array([1, 2, 3, 0], np.float32)),
        ("int16_t", -3, np.int16(-3)),
        ("Params", 1, None),
        ("uint5", (1,), None),
    ],
)
def test_pack(kind, value, expected):
    packed = pack(kind, value)
    if expected is None:
        assert packed is None
    else:
        assert packed.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82), (-0.0, 0x8000)]
    + [(3.4e38, 0x7F80), (np.inf, 0x7F80), (np.nan, 0x7FC0)],
)
def test_bfloat_rounds_to_even(value, bits):
    assert pack("bfloat", value).view(np.uint16)[0] == bits


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("uint", -1, "-1 is no value of uint"),
        ("short", 2**15, "32768 is no value of short"),
        ("int", 0.5, "0.5 is no value of int"),
        ("uint2", (1, 2, 3), "uint2 takes 2 values"),
        ("ushort2", (1, 2**16), "65536 is no value of ushort"),
    ],
)
def test_values_that_do_not_fit_are_refused(kind, value, message):
    with pytest.raises(ValueError, match=message):
        pack(kind, value)
