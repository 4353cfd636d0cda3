"""Apple's softmax and logsumexp, unmodified, against float64."""

import apple_kernels as ak
import numpy as np
import pytest

HEADERS = ("defines.h", "utils.h", "softmax.h", "logsumexp.h")
N_READS = 4
TYPES = [("float", "float"), ("half", "float"), ("half", "half"), ("bfloat16_t", "float")]


@pytest.fixture(scope="module")
def library(apple):
    names = ("softmax_single_row", "softmax_looped", "logsumexp", "logsumexp_looped")
    pairs = ((name, kinds) for name in names for kinds in TYPES)
    return apple(
        *HEADERS,
        **{f"{name}_{'_'.join(kinds)}": f"{name}<{', '.join(kinds)}>" for name, kinds in pairs},
    )


def threads(kernel, axis):
    """As MLX launches them: all of the row at once, or 1024 threads in a loop."""
    if kernel.endswith("looped"):
        return 1024
    return -(-axis // (N_READS * 32)) * 32


def run(library, kernel, kinds, rows, axis, out_width):
    x = np.random.default_rng(axis).normal(size=(rows, axis)) * 4
    x = ak.rounded(x, kinds[0])
    out = np.zeros((rows, out_width), ak.DTYPES[kinds[0]])
    library.pipeline(f"{kernel}_{'_'.join(kinds)}").launch(
        {0: x, 1: out, 2: axis}, grid=(rows,), threadgroup=(threads(kernel, axis),)
    )
    return ak.float32(x).astype(np.float64), out


def exponent_error(x, kind):
    """Relative error of a sum of exp(x - max) in the accumulation type."""
    spread = np.ptp(x, axis=-1, keepdims=True)
    # One rounding of the difference, one of exp, one for each level of the sum's tree.
    return ak.ROUNDING[kind] * (2 * spread + 4 + 2 * np.log2(x.shape[-1]))


@pytest.mark.parametrize("kinds", TYPES, ids="-".join)
@pytest.mark.parametrize(
    ("kernel", "rows", "axis"),
    [
        ("softmax_single_row", 3, 1),
        ("softmax_single_row", 2, 127),
        ("softmax_single_row", 2, 1024),
        ("softmax_looped", 1, 5001),
    ],
)
def test_softmax(library, kernel, rows, axis, kinds):
    x, out = run(library, kernel, kinds, rows, axis, axis)
    weights = np.exp(x - x.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True)
    # exp() of far smaller scores is a subnormal half, and so is its product with the normalizer.
    subnormal = 2 * 2.0**-25 if kinds[1] == "half" else 0
    budget = expected * 2 * exponent_error(x, kinds[1]) + subnormal
    ak.assert_within(out, expected, budget, kinds[0])


@pytest.mark.parametrize("kinds", [pair for pair in TYPES if pair[1] == "float"], ids="-".join)
@pytest.mark.parametrize(("kernel", "axis"), [("logsumexp", 131), ("logsumexp_looped", 4500)])
def test_logsumexp(library, kernel, axis, kinds):
    x, out = run(library, kernel, kinds, 2, axis, 1)
    top = x.max(-1, keepdims=True)
    expected = np.log(np.exp(x - top).sum(-1, keepdims=True)) + top
    budget = exponent_error(x, kinds[1]) + 2 * ak.ROUNDING["float"] * np.abs(expected)
    ak.assert_within(out, expected, budget, kinds[0])


def test_special_values(library):
    x = np.array([[np.inf, 1, 2], [-np.inf] * 3, [np.nan, 1, 2], [-np.inf, 0, 0]], np.float32)
    out = np.zeros((4, 3), np.float32)
    kernel = library.pipeline("softmax_single_row_float_float")
    kernel.launch({0: x, 1: out, 2: 3}, grid=(4,), threadgroup=(32,))
    assert np.isnan(out[0]).all() and np.isnan(out[2]).all()
    assert out[3].tolist() == [0, 0.5, 0.5]
