"""What the ops refuse in every format: the message names the geometry that the mode expects."""

import re

import mlx.core as mx
import numpy as np
import pytest
from format_cases import FLOAT, INSIDE, STORED, FormatCase, random_packed

import mlx_tensorops as mto
from mlx_tensorops.reference.formats import ggml

MODES = (*STORED, *FLOAT, *INSIDE)
N, K = 8, 256


def arrays(mode):
    """w, and scales or None."""
    case = FormatCase(mode, (N, K), scales="uint8" if mode in STORED else "")
    w, *scales = random_packed(case, np.random.default_rng(0))
    return w, (*scales, None)[0]


def refused(message, mode, *packed, **options):
    """Both ops refuse, each under its own name."""
    x = mx.ones((2, K))
    calls = {
        "dequantize": lambda: mto.dequantize(*packed, mode=mode, **options),
        "quantized_matmul": lambda: mto.quantized_matmul(x, *packed, mode=mode, **options),
    }
    for op, call in calls.items():
        with pytest.raises(ValueError, match=rf"^\[{op}\] {message}"):
            call()


@pytest.mark.parametrize("mode", MODES)
def test_dtype_of_w(mode):
    w, scales = arrays(mode)
    dtype = "uint32" if mode in STORED else "uint8"
    refused(
        f'w must have dtype {dtype} in mode "{mode}", got int32', mode, w.astype(mx.int32), scales
    )


@pytest.mark.parametrize("mode", [*STORED, "nf4", "bnb_fp4", *INSIDE])
def test_rows_that_are_no_whole_blocks(mode):
    w, scales = arrays(mode)
    wide = mx.concatenate([w, w[:, :1]], axis=1)
    message = "w must have a last dimension of whole blocks of "
    if mode in INSIDE:
        form = ggml.MODES[mode]
        message += f"{form.block} values in {form.block_bytes} bytes"
    refused(message, mode, wide, scales)


@pytest.mark.parametrize("mode", MODES)
def test_one_dimension(mode):
    w, scales = arrays(mode)
    refused("w must have at least 2 dimensions, got shape", mode, w[0], scales)


@pytest.mark.parametrize("mode", MODES)
def test_arrays_that_the_mode_does_not_have(mode):
    w, scales = arrays(mode)
    refused(f'biases must be None in mode "{mode}"', mode, w, scales, mx.ones((N, 8)))
    if mode != "nvfp4":
        options = {"global_scale": mx.array(1.0)}
        refused(f'global_scale must be None in mode "{mode}"', mode, w, scales, **options)
    if scales is None:
        refused(f'scales must be None in mode "{mode}", got an array', mode, w, mx.ones((N, 8)))
    else:
        refused(f'scales must be given in mode "{mode}", got None', mode, w, None)


@pytest.mark.parametrize("mode", [*STORED, *FLOAT])
def test_scales(mode):
    w, scales = arrays(mode)
    shape = re.escape(str(tuple(scales.shape)))
    expected = "be one number" if mode == "bitnet" else f"have the shape {shape} that w .* implies"
    refused(rf'scales must {expected} in mode "{mode}", got .*\(3, 5\)', mode, w, mx.ones((3, 5)))
    for dtype in (mx.int32, mx.complex64, *([] if mode in STORED else [mx.uint8])):
        refused(r"scales must have (dtype uint8 or )?a floating", mode, w, scales.astype(dtype))


@pytest.mark.parametrize("mode", MODES)
def test_bits_and_group_size(mode):
    w, scales = arrays(mode)
    refused(rf'bits must be (None|\d) in mode "{mode}", got 7', mode, w, scales, bits=7)
    if not mode.startswith("fp8"):
        refused("group_size must be ", mode, w, scales, group_size=48)
        refused(r"group_size must be .*, got \(2, 3\)", mode, w, scales, group_size=(2, 3))
    for size in (-32, (0, 128)):
        refused("group_size must be ", mode, w, scales, group_size=size)


@pytest.mark.parametrize("mode", MODES)
def test_x_of_another_width(mode):
    w, scales = arrays(mode)
    with pytest.raises(ValueError, match=r"^\[quantized_matmul\] x must have the last dimension"):
        mto.quantized_matmul(mx.ones((3, 100)), w, scales, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_dtype_of_the_output(mode):
    w, scales = arrays(mode)
    with pytest.raises(ValueError, match=r"^\[dequantize\] dtype must be a real floating type"):
        mto.dequantize(w, scales, mode=mode, dtype=mx.int32)


def test_an_unknown_mode_is_answered_with_all_modes():
    message = f'mode must be one of {", ".join(mto.formats())}, got "int4".'
    refused(re.escape(message) + "$", "int4", *arrays("mxfp4"))
    with pytest.raises(ValueError, match=re.escape(f"[quantize] {message}")):
        mto.quantize(mx.ones((N, K)), mode="int4")


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_rows_of_half_a_span(bits):
    w = mx.zeros((2, 16 * 3 * bits // 32), mx.uint32)
    scales = mx.ones((2, 3))
    message = rf"w must have a last dimension of whole groups \(32 values of {bits} bits\)"
    refused(message, "affine", w, scales, scales, group_size=16, bits=bits)
