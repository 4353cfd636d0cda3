"""quantized_matmul: its signature, what it refuses and what it leaves to MLX."""

import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from affine_cases import FORMAT_ERRORS, AffineCase, not_covered, random_floats, random_quantized
from signatures import same_but_for_scales
from tolerance import assert_same_bits

import mlx_tensorops as mto


def run_apart(program):
    # Isolated, so that a source tree in the current folder does not hide the installed package.
    command = [sys.executable, "-I", "-c", program]
    return subprocess.run(command, capture_output=True, text=True)


def test_no_rows_do_not_end_the_process():
    """R14, in a process of its own: MLX's op dies with SIGFPE."""
    program = (
        "import mlx.core as mx, mlx_tensorops as mto\n"
        "w = mto.quantize(mx.ones((64, 128)))\n"
        "print(mto.quantized_matmul(mx.ones((0, 128)), *w, force_fused=True).shape)\n"
    )
    done = run_apart(program)
    assert done.stdout.strip() == "(0, 64)", done


GIVEN_TO_MLX = {
    "no rows of integers": "mto.quantized_matmul(mx.zeros((0, 128), mx.int32), *w)",
    "no rows, mxfp4": "mto.quantized_matmul(mx.zeros((0, 128)), *fp4, mode='mxfp4')",
    "no rows to decode": "mto.dequantize(*(a[:0] for a in w), dtype=mx.float64, stream=mx.cpu)",
    "no group size": "mto.quantize(mx.ones((8, 128)), 0, mode='mxfp4')",
    "no bits": "mto.quantized_matmul(mx.ones((1, 128)), *fp4, bits=0, mode='mxfp4')",
}


@pytest.mark.parametrize("call", GIVEN_TO_MLX)
def test_calls_given_to_mlx_do_not_end_the_process(call):
    """MLX divides by the number of rows, the group size and the bits; an error is fine."""
    program = (
        "import mlx.core as mx, mlx_tensorops as mto\n"
        "w = mto.quantize(mx.ones((8, 128)))\n"
        "fp4 = mx.quantize(mx.ones((8, 128)), mode='mxfp4')\n"
        f"try: mx.eval({GIVEN_TO_MLX[call]})\n"
        "except ValueError: pass\n"
    )
    done = run_apart(program)
    assert done.returncode == 0, done


def test_signature_is_mlx_s():
    assert same_but_for_scales(mto.quantized_matmul, mx.quantized_matmul)
    case = AffineCase(w=(8, 128), bits=8, group_size=32, x=(2, 8), transpose=False)
    x = random_floats(case.rng(), case.x, mx.float32)
    w, scales, biases = random_quantized(case, case.rng())
    by_position = mto.quantized_matmul(x, w, scales, biases, False, 32, 8, "affine")
    by_name = mto.quantized_matmul(
        x, w, mode="affine", bits=8, group_size=32, transpose=False, biases=biases, scales=scales
    )
    assert_same_bits(by_position, by_name, "by position and by name")
    w, scales, biases = mto.quantize(mx.ones((8, 128)))
    x = mx.ones((2, 128))
    spelled_out = mto.quantized_matmul(x, w, scales, biases, True, 64, 4, "affine")
    assert_same_bits(mto.quantized_matmul(x, w, scales, biases), spelled_out, "defaults")


X = mx.ones((3, 128))
W, SCALES, BIASES = mx.zeros((8, 16), mx.uint32), mx.ones((8, 2)), mx.ones((8, 2))
GOOD = {"x": X, "w": W, "scales": SCALES, "biases": BIASES}
IMPLIED = "that w, bits and group_size imply, got "
BAD_INPUTS = {
    **FORMAT_ERRORS,
    "no biases": ({"biases": None}, 'biases must be given in mode "affine", got None.'),
    "scalar x": ({"x": mx.array(1.0)}, "x must have at least 1 dimension, got a scalar."),
    "flat w": ({"w": W[0]}, "w must have at least 2 dimensions, got shape (16,)."),
    "signed w": ({"w": W.astype(mx.int32)}, "w must have dtype uint32, got int32."),
    "complex x": ({"x": X.astype(mx.complex64)}, "x must be real, got complex64."),
    "short x": (
        {"x": X[:, :64]},
        "x must have the last dimension 128 of w (8, 16) (transposed), got shape (3, 64).",
    ),
    "long x, not transposed": (
        {"transpose": False},
        "x must have the last dimension 8 of w (8, 16) (not transposed), got shape (3, 128).",
    ),
    "few rows of scales": (
        {"scales": SCALES[:4], "biases": BIASES[:4]},
        f"scales must have the shape (8, 2) {IMPLIED}(4, 2).",
    ),
    "few scales": (
        {"scales": SCALES[:, :1], "biases": BIASES[:, :1]},
        f"scales must have the shape (8, 2) {IMPLIED}(8, 1).",
    ),
    "flat scales": (
        {"scales": SCALES[0], "biases": BIASES[0]},
        f"scales must have the shape (8, 2) {IMPLIED}(2,).",
    ),
    "more batches of scales than of w": (
        {"scales": SCALES[None], "biases": BIASES[None]},
        f"scales must have the shape (8, 2) {IMPLIED}(1, 8, 2).",
    ),
    "few biases": (
        {"biases": BIASES[:, :1]},
        "biases must have the shape of scales (8, 2), got (8, 1).",
    ),
    "other bits than packed": (
        {"bits": 8},
        f"scales must have the shape (8, 1) {IMPLIED}(8, 2).",
    ),
    "no whole groups": (
        {"bits": 3},
        "w must have a last dimension of whole groups (64 values of 3 bits), got shape (8, 16).",
    ),
    "batches that do not broadcast": (
        {
            "x": mx.ones((3, 2, 128)),
            "w": mx.stack([W] * 2),
            "scales": mx.stack([SCALES] * 2),
            "biases": mx.stack([BIASES] * 2),
        },
        "x must have leading dimensions that broadcast with those of w (2, 8, 16), "
        "got shape (3, 2, 128).",
    ),
}
ONLY_MLX = {
    "integer x": ({"x": X.astype(mx.int32)}, "x of dtype int32"),
    "integer scales": ({"scales": SCALES.astype(mx.int32)}, "scales of dtype int32"),
    "float64 biases": ({"biases": BIASES.astype(mx.float64)}, "biases of dtype float64"),
}


def error_of(changes):
    arguments = {**GOOD, **changes}
    with pytest.raises(ValueError) as error:
        mto.quantized_matmul(arguments.pop("x"), arguments.pop("w"), **arguments)
    return str(error.value)


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_an_error_at_the_call(name):
    changes, message = BAD_INPUTS[name]
    assert error_of(changes) == f"[quantized_matmul] {message}"


@pytest.mark.parametrize("name", ONLY_MLX)
def test_force_fused_forbids_mlx(name):
    changes, what = ONLY_MLX[name]
    assert error_of({**changes, "force_fused": True}) == f"[quantized_matmul] {not_covered(what)}"


@pytest.mark.parametrize("bad", ([1.0], np.ones((3, 128), np.float32), None, 1.0))
def test_x_must_be_an_array(bad):
    with pytest.raises(TypeError):
        mto.quantized_matmul(bad, W, SCALES, BIASES)


def test_arrays_are_positional_only():
    with pytest.raises(TypeError):
        mto.quantized_matmul(x=X, w=W, scales=SCALES, biases=BIASES)


def test_what_only_mlx_supports_is_given_to_mlx():
    counts = (mx.arange(3 * 128) % 5).reshape(3, 128)
    w, scales, biases = mx.quantize(mx.random.normal((8, 128)))
    ours = mto.quantized_matmul(counts, w, scales, biases)
    assert_same_bits(ours, mx.quantized_matmul(counts, w, scales, biases), "integer x")
