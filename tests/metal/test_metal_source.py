"""metal_source: the text that is compiled, whole and for the very call."""

import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from format_cases import FormatCase, random_packed

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal, emulator

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
# What the call is like, and a part of the kernel's name that it must have.
CALLS = {
    "quantize": ("quantize", {}, "quantize_affine_half_4_64"),
    "quantize, 3 bits": (
        "quantize",
        {"rows": 5, "columns": 96, "bits": 3, "group_size": 32, "dtype": F32},
        "quantize_affine_float_3_32",
    ),
    "dequantize": ("dequantize", {}, "dequantize_affine_half_half_half_4_64"),
    "dequantize, mixed": (
        "dequantize",
        {"dtype": F32, "scales_dtype": BF16, "biases_dtype": F16, "bits": 8, "columns": 128},
        "dequantize_affine_bfloat_half_float_8_64",
    ),
    "one row": ("quantized_matmul", {}, "few_rows_t_half_half_half_4_64_1_"),
    "many rows": (
        "quantized_matmul",
        {"rows": 64, "dtype": BF16},
        "tiles_bfloat_bfloat_bfloat_4_64_true_64_32_true_true_true",
    ),
    "not transposed": (
        "quantized_matmul",
        {"rows": 70, "inner": 77, "transpose": False, "dtype": F32, "scales_dtype": F16},
        "tiles_float_half_half_4_64_false_32_64_false_false_false",
    ),
    "tf32": (
        "quantized_matmul",
        {"rows": 64, "dtype": F32, "precision": "tf32"},
        "tiles_float_float_float_4_64_true_64_32_true_true_true",
    ),
    "scales as bytes": (
        "dequantize",
        {"mode": "nvfp4", "dtype": F32},
        "dequantize_format_mto_Coded_mto_E2M1Codes_mto_E4M3Scale_mto_NoThird_true_false_float",
    ),
    "scales of tiles": (
        "quantized_matmul",
        {"mode": "fp8_e5m2", "rows": 40, "dtype": BF16},
        "quantized_matmul_format_tiles_mto_Coded_mto_E5M2Codes_mto_FloatScale_bfloat",
    ),
    "blocks of a file": (
        "quantized_matmul",
        {"mode": "q4_k", "inner": 256},
        "quantized_matmul_format_few_rows_t_mto_Blocks_mto_Q4_K_half_1",
    ),
    "attention": (
        "scaled_dot_product_attention",
        {"queries": 40, "keys": 70},
        "attention_forward_half_16_32_64_true_true",
    ),
    "attention of wide heads": (
        "scaled_dot_product_attention",
        {"queries": 40, "keys": 20, "dtype": F32, "head_dim": 9, "value_dim": 200, "heads": 2},
        "attention_forward_wide_float_16_32_128_2_true_false",
    ),
    "attention of one query": (
        "scaled_dot_product_attention",
        {"queries": 1, "keys": 70, "dtype": BF16, "having": ("alibi", "mask")},
        "attention_few_queries_bfloat_64_64_",
    ),
    "attention to packed keys": (
        "quantized_scaled_dot_product_attention",
        {"queries": 40, "keys": 70, "bits": 4},
        "attention_half_mto_CodedGroups_mto_UnsignedCodes_4_64_mto_FloatScale_half_",
    ),
    "attention of one query to packed keys": (
        "quantized_scaled_dot_product_attention",
        {"queries": 1, "keys": 70, "bits": 8, "dtype": BF16, "having": ("alibi",)},
        "attention_few_queries_bfloat_mto_CodedGroups_mto_UnsignedCodes_8_64_mto_FloatScale_",
    ),
}
ATTENTIONS = ("scaled_dot_product_attention", "quantized_scaled_dot_product_attention")
BY_NAME = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@BY_NAME
def test_is_one_whole_text(call):
    op, options, name = call
    text = mto.metal_source(op, **options)
    assert text.isascii()
    assert '#include "' not in text and "#include <metal_stdlib>" in text
    assert "#pragma once" not in text
    family = "" if op == "scaled_dot_product_attention" else f"{op}_"
    assert f'[[host_name("mlx_tensorops_{family}' in text.splitlines()[-1]
    assert name in text.splitlines()[-1]
    assert text.count("[[host_name(") == 1


@BY_NAME
def test_compiles_by_itself(call):
    op, options, name = call
    library = emulator.compile(mto.metal_source(op, **options))
    (kernel,) = library.kernels
    assert name in kernel


def run(op, rows=4, columns=128, inner=128, dtype=F16, scales_dtype=None, biases_dtype=None, **o):
    """A call of these options, as a user makes it."""
    if op in ATTENTIONS:
        return attend(dtype=dtype, **o)
    transpose, precision = o.pop("transpose", True), o.pop("precision", None)
    bits, group_size = o.pop("bits", 4), o.pop("group_size", 64)
    shape = (rows, columns)
    mode = o.pop("mode", None)
    if op == "quantized_matmul":
        shape = (columns, inner) if transpose else (inner, columns)
    if mode:
        kind = "uint8" if mode == "nvfp4" else str(scales_dtype or dtype).removeprefix("mlx.core.")
        arrays = random_packed(FormatCase(mode, shape, scales=kind), np.random.default_rng(0))
        if op == "dequantize":
            return mto.dequantize(*arrays, mode=mode, dtype=dtype, force_fused=True)
        x = mx.random.normal((rows, inner)).astype(dtype)
        return mto.quantized_matmul(x, *arrays, mode=mode, transpose=transpose, force_fused=True)
    w = mx.random.normal(shape).astype(dtype)
    if op == "quantize":
        return mto.quantize(w, group_size, bits, force_fused=True)
    w_q, scales, biases = mx.quantize(w, group_size, bits)
    scales_dtype = scales_dtype or dtype
    biases_dtype = biases_dtype or scales_dtype
    w_q = (w_q, scales.astype(scales_dtype), biases.astype(biases_dtype))
    if op == "dequantize":
        return mto.dequantize(*w_q, group_size, bits, dtype=dtype, force_fused=True)
    x = mx.random.normal((rows, inner)).astype(dtype)
    return mto.quantized_matmul(
        x, *w_q, transpose, group_size, bits, precision=precision, force_fused=True
    )


def attend(queries, keys, head_dim=64, value_dim=None, heads=1, dtype=F16, bits=None, having=()):
    q, k, v = (
        mx.random.normal(shape).astype(dtype)
        for shape in (
            (1, heads, queries, head_dim),
            (1, 1, keys, head_dim),
            (1, 1, keys, value_dim or head_dim),
        )
    )
    options = {"alibi": mx.ones(heads), "mask": mx.ones((1, keys), mx.bool_)}
    options = {name: options[name] for name in having} | {"force_fused": True}
    if bits:
        k, v = (mx.quantize(a, 64, bits) for a in (k, v))
        return mto.quantized_scaled_dot_product_attention(q, k, v, 0.1, bits=bits, **options)
    return mto.scaled_dot_product_attention(q, k, v, scale=0.1, **options)


@BY_NAME
def test_is_what_a_call_compiles(call):
    op, options, _ = call
    compiled = []

    def note(text):
        compiled.append(text)
        return text

    if op not in ATTENTIONS:
        rows = 1 if op == "quantized_matmul" else 4
        options = {"rows": rows, "columns": 128, "inner": 128} | options
    with emulated_metal(edit_source=note) as launched:
        mx.eval(run(op, **options))
    if op in ("quantize", "dequantize"):
        del options["inner"]
    assert [mto.metal_source(op, **options)] == compiled
    assert len(launched.launches) == 1


GRADIENTS = {
    "apart": ({"queries": 40, "keys": 70}, 3),
    "wide heads": ({"queries": 40, "keys": 70, "head_dim": 256, "dtype": F32}, 3),
    "of a mask and slopes": ({"queries": 9, "keys": 20, "having": ("mask", "alibi")}, 5),
}


@pytest.mark.parametrize(("options", "n_launches"), GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_of_attention(options, n_launches):
    """All texts of the backward pass, and nothing else."""
    op = "scaled_dot_product_attention_vjp"
    texts = [mto.metal_source(op, launch=i, **options) for i in range(n_launches)]
    with pytest.raises(ValueError, match=f"launch must be among the call's {n_launches}, "):
        mto.metal_source(op, launch=n_launches, **options)
    compiled = []

    def note(text):
        compiled.append(text)
        return text

    keys, d, dtype = options["keys"], options.get("head_dim", 64), options.get("dtype", F16)
    inputs = [mx.ones((1, 1, n, d), dtype) for n in (options["queries"], keys, keys)]
    more = {"mask": mx.zeros((1, keys), dtype), "alibi": mx.ones(1)}
    names = options.get("having", ())

    def total(*arrays):
        given = dict(zip(names, arrays[3:], strict=True)) | {"force_fused": True}
        return mto.scaled_dot_product_attention(*arrays[:3], scale=0.1, **given).sum()

    inputs += [more[name] for name in names]
    with emulated_metal(edit_source=note):
        mx.eval(mx.grad(total, argnums=range(len(inputs)))(*inputs))
    assert [text for text in compiled if "_grad" in text.splitlines()[-1]] == texts


def test_asking_computes_and_counts_nothing():
    mto.reset_report()
    with emulated_metal(macos=(15, 5)) as launched:
        text = mto.metal_source("quantize")
    assert text == mto.metal_source("quantize")
    assert launched.launches == [] and mto.report().ops == ()


def test_is_the_same_in_every_process(tmp_path):
    program = "import mlx_tensorops as mto; print(mto.metal_source('quantized_matmul', rows=64))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout[:-1] == mto.metal_source("quantized_matmul", rows=64)


BAD = {
    "op": (
        ("attention",),
        {},
        "op must be one of quantize, .*scaled_dot_product_attention, got 'at",
    ),
    "having": (
        ("scaled_dot_product_attention",),
        {"having": ("mask", "bias")},
        "having must name options, of mask, .* got 'bias'",
    ),
    "form": (("quantize", "core_ai"), {}, "form must be one of mlx, got 'core_ai'"),
    "option": (("quantize",), {"inner": 8}, "an option of quantize must be one of rows, .* got in"),
    "size": (("quantize",), {"rows": 0}, "rows must be a positive int, got 0"),
    "kind of size": (("quantize",), {"columns": 64.0}, "columns must be a positive int, got 64.0"),
    "launch": (("quantize",), {"launch": 1}, "launch must be among the call's 1, .* got 1"),
    "launch before": (
        ("quantize",),
        {"launch": -1},
        "launch must be among the call's 1, .* -1",
    ),
    "mode": (("dequantize",), {"mode": "int5"}, "mode must be one of affine, .*, got 'int5'"),
    "bits": (("quantize",), {"bits": 7}, r"\[quantize\] bits must be one of 1, 2, 3, 4, 5, 6, 8"),
    "columns": (("dequantize",), {"columns": 70}, r"\[dequantize\] scales must have the shape"),
    "group size": (("dequantize",), {"group_size": 0}, r"\[dequantize\] group_size must be one of"),
    "dtype": (("quantized_matmul",), {"dtype": mx.int32}, "got x of dtype int32"),
    "precision": (("quantized_matmul",), {"precision": "fp8"}, "precision must be None or"),
}


@pytest.mark.parametrize(("arguments", "options", "message"), BAD.values(), ids=BAD)
def test_bad_arguments(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        mto.metal_source(*arguments, **options)
