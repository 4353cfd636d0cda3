"""The Metal text that an op's call compiles, to be read or to be run elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx

from mlx_tensorops import _ext
from mlx_tensorops.formats import formats
from mlx_tensorops.ops.dequantize import dequantize as dequantize_op
from mlx_tensorops.ops.quantize import quantize as quantize_op
from mlx_tensorops.ops.quantized_matmul import quantized_matmul as quantized_matmul_op
from mlx_tensorops.ops.quantized_scaled_dot_product_attention import (
    quantized_scaled_dot_product_attention as quantized_attention_op,
)
from mlx_tensorops.ops.scaled_dot_product_attention import (
    scaled_dot_product_attention as attention_op,
)

_FORMS = ("mlx",)
_SIZES = ("rows", "columns", "inner", "queries", "keys", "heads", "kv_heads", "head_dim")


def metal_source(op: str, form: str = "mlx", *, launch: int = 0, **options: Any) -> str:
    """Return the Metal source that a call of an op compiles, exactly as the compiler gets it.

    It is one ASCII text with everything of this package in it, and includes only Apple's headers.
    It ends with the one instance of a kernel template that the call runs, under the name in its
    ``[[host_name]]``. Kernels are chosen by shapes, dtypes and format, as for a call with
    ``route="ours"``; no array is computed, and it works on every platform.

    Args:
        op: ``"quantize"``, ``"dequantize"``, ``"quantized_matmul"``,
            ``"scaled_dot_product_attention"``, ``"scaled_dot_product_attention_vjp"``, the backward
            pass of the same, or ``"quantized_scaled_dot_product_attention"``.
        form: ``"mlx"``: buffers by index, as MLX binds them.
        launch: Which of the call's kernels, in the order in which they are launched. Each has a
            text of its own. Default: 0, the first. Attention of few queries of many keys has two,
            its backward pass three, and one more for the gradient of a mask and of slopes;
            documents have one before the others, and the other calls of today have one.
        options: What the call is like, each with a default:

            - all but attention: ``columns`` of the matrix that is packed or unpacked (for
              ``quantized_matmul``, of the result), ``rows`` (of the result), ``bits``,
              ``group_size``, ``dtype`` (of the values; for ``dequantize`` of the result);
            - ``dequantize``, ``quantized_matmul``: ``mode``, by default ``"affine"``,
              ``scales_dtype``, by default ``dtype``, and ``biases_dtype``, by default that of the
              scales;
            - ``quantized_matmul``: ``inner``, the axis that is summed over, ``transpose``,
              ``precision``;
            - ``scaled_dot_product_attention`` and its backward pass: ``queries``, ``keys``,
              ``heads``, ``kv_heads``,
              ``head_dim``, ``value_dim`` (by default the same), ``dtype``, ``precision``, and
              ``having``, the names of options that the call has. Every text serves all of them:
              they are Metal function constants;
            - ``quantized_scaled_dot_product_attention``: the same, and ``bits``, ``group_size``,
              ``scales_dtype`` and ``biases_dtype`` of both keys and values.

    Returns:
        The text.

    Raises:
        ValueError: an unknown op, form or option, a call that the op refuses or has no kernel for,
            or no such launch.

    Example:
        >>> text = mto.metal_source("quantized_matmul", rows=512, dtype=mx.bfloat16)
    """
    if op not in _EXAMPLES:
        raise ValueError(f"[metal_source] op must be one of {', '.join(_EXAMPLES)}, got {op!r}.")
    if form not in _FORMS:
        raise ValueError(f"[metal_source] form must be one of {', '.join(_FORMS)}, got {form!r}.")
    known = inspect.signature(_EXAMPLES[op]).parameters
    for name, value in options.items():
        if name not in known:
            raise ValueError(
                f"[metal_source] an option of {op} must be one of {', '.join(known)}, got {name}."
            )
        if name in _SIZES and not (isinstance(value, int) and value > 0):
            raise ValueError(f"[metal_source] {name} must be a positive int, got {value!r}.")
    kernels = example_kernels(op, **options)
    if launch not in range(len(kernels)):
        raise ValueError(
            f"[metal_source] launch must be among the call's {len(kernels)}, counted from 0, "
            f"got {launch!r}."
        )
    return kernels[launch].source


def example_kernels(op: str, **options: Any) -> list[_ext.MetalKernel]:
    """The kernels of such a call, in the order of their launches."""
    found = _ext.without_emulation(lambda: _ext.metal_kernels(example(op, mx.cpu, **options)))
    return cast("list[_ext.MetalKernel]", found)


def example(op: str, stream: Any, **options: Any) -> mx.array:
    """A lazy result of such a call by our kernels, on a stream."""
    return _EXAMPLES[op](**options)(stream)


_Call = Callable[[Any], mx.array]


@dataclass(frozen=True)
class _Packed:
    """A matrix as the ops take it: its arrays, and the options that go with them."""

    arrays: tuple[mx.array, mx.array | None, mx.array | None]
    group_size: int | None
    bits: int | None
    mode: str


def _packed(
    rows: int,
    columns: int,
    mode: str,
    bits: int | None,
    group_size: int | None,
    scales: mx.Dtype,
    biases: mx.Dtype,
) -> _Packed:
    # Sizes that do not fit each other are the op's to refuse.
    if mode != "affine":
        return _packed_in(mode, rows, columns, bits, group_size, scales)
    bits, group_size = 4 if bits is None else bits, 64 if group_size is None else group_size
    groups = (rows, -(-columns // max(group_size, 1)))
    w = mx.zeros((rows, columns * bits // 32), mx.uint32)
    arrays = (w, mx.zeros(groups, scales), mx.zeros(groups, biases))
    return _Packed(arrays, group_size, bits, mode)


def _packed_in(
    mode: str,
    rows: int,
    columns: int,
    bits: int | None,
    group_size: int | None,
    scales: mx.Dtype,
) -> _Packed:
    known = formats()
    if mode not in known:
        raise ValueError(f"[metal_source] mode must be one of {', '.join(known)}, got {mode!r}.")
    info = known[mode]
    dtype = getattr(mx, info.dtype)
    row_bytes = columns // info.block * info.block_bytes
    shape = (rows // 4, columns) if mode == "bitnet" else (rows, row_bytes // dtype.size)
    if info.scales == "inside":
        return _Packed((mx.zeros(shape, dtype), None, None), group_size, bits, mode)
    n_rows, n_columns = info.group_size
    n_columns = group_size if n_columns and group_size else n_columns
    groups = tuple(
        -(-size // n) for size, n in ((rows, n_rows), (columns, n_columns)) if n is not None
    )
    stored = mx.zeros(groups or (1,), mx.uint8 if info.scales in ("e8m0", "e4m3") else scales)
    return _Packed((mx.zeros(shape, dtype), stored, None), group_size, bits, mode)


def _quantize(
    rows: int = 1024,
    columns: int = 1024,
    bits: int = 4,
    group_size: int = 64,
    dtype: mx.Dtype = mx.float16,
) -> _Call:
    w = mx.zeros((rows, columns), dtype)
    return lambda stream: quantize_op(w, group_size, bits, force_fused=True, stream=stream)[0]


def _dequantize(
    rows: int = 1024,
    columns: int = 1024,
    bits: int | None = None,
    group_size: int | None = None,
    dtype: mx.Dtype = mx.float16,
    scales_dtype: mx.Dtype | None = None,
    biases_dtype: mx.Dtype | None = None,
    mode: str = "affine",
) -> _Call:
    dtypes = scales_dtype or dtype, biases_dtype or scales_dtype or dtype
    packed = _packed(rows, columns, mode, bits, group_size, *dtypes)
    w, scales, biases = packed.arrays
    form = (packed.group_size, packed.bits, mode)
    return lambda stream: dequantize_op(
        w, scales, biases, *form, dtype=dtype, force_fused=True, stream=stream
    )


def _quantized_matmul(
    rows: int = 1,
    columns: int = 1024,
    inner: int = 1024,
    bits: int | None = None,
    group_size: int | None = None,
    dtype: mx.Dtype = mx.float16,
    scales_dtype: mx.Dtype | None = None,
    biases_dtype: mx.Dtype | None = None,
    transpose: bool = True,
    precision: str | None = None,
    mode: str = "affine",
) -> _Call:
    x = mx.zeros((rows, inner), dtype)
    shape = (columns, inner) if transpose else (inner, columns)
    dtypes = scales_dtype or dtype, biases_dtype or scales_dtype or dtype
    packed = _packed(*shape, mode, bits, group_size, *dtypes)
    w, scales, biases = packed.arrays
    form = (transpose, packed.group_size, packed.bits, mode)
    return lambda stream: quantized_matmul_op(
        x, w, scales, biases, *form, precision=precision, force_fused=True, stream=stream
    )


def _attention_options(having: Sequence[str], queries: int, keys: int, heads: int) -> Any:
    ends = mx.array([0, queries]), mx.array([0, keys])
    known: dict[str, dict[str, Any]] = {
        "mask": {"mask": mx.zeros((1, keys), mx.bool_)},
        "sinks": {"sinks": mx.zeros(heads)},
        "window": {"window": (keys, None)},
        "softcap": {"softcap": 1.0},
        "alibi": {"alibi": mx.zeros(heads)},
        "segment_ids": {
            "segment_ids": (mx.zeros((1, queries), mx.int32), mx.zeros((1, keys), mx.int32))
        },
        "cu_seqlens": {"cu_seqlens": ends},
        "block_mask": {
            "block_mask": mx.zeros((1, 1), mx.bool_),
            "block_size": (queries, keys),
        },
    }
    for name in having:
        if name not in known:
            raise ValueError(
                f"[metal_source] having must name options, of {', '.join(known)}, got {name!r}."
            )
    return {key: value for name in having for key, value in known[name].items()}


def _attention(
    queries: int = 512,
    keys: int = 512,
    heads: int = 1,
    kv_heads: int = 1,
    head_dim: int = 64,
    value_dim: int | None = None,
    dtype: mx.Dtype = mx.float16,
    precision: str | None = None,
    having: tuple[str, ...] = (),
) -> _Call:
    options = _attention_options(having, queries, keys, heads)
    q, k, v = (
        mx.zeros((1, n_heads, length, size), dtype)
        for n_heads, length, size in (
            (heads, queries, head_dim),
            (kv_heads, keys, head_dim),
            (kv_heads, keys, head_dim if value_dim is None else value_dim),
        )
    )
    return lambda stream: cast(
        mx.array,
        attention_op(
            q, k, v, scale=1.0, **options, precision=precision, force_fused=True, stream=stream
        ),
    )


def _attention_vjp(
    queries: int = 512,
    keys: int = 512,
    heads: int = 1,
    kv_heads: int = 1,
    head_dim: int = 64,
    value_dim: int | None = None,
    dtype: mx.Dtype = mx.float16,
    precision: str | None = None,
    having: tuple[str, ...] = (),
) -> _Call:
    options = _attention_options(having, queries, keys, heads)
    if "mask" in options:
        options["mask"] = options["mask"].astype(dtype)
    values = head_dim if value_dim is None else value_dim
    q = mx.zeros((1, heads, queries, head_dim), dtype)
    k, v = (mx.zeros((1, kv_heads, keys, size), dtype) for size in (head_dim, values))
    names = [name for name in ("mask", "alibi") if name in options]
    primals = [q, k, v, *(options[name] for name in names)]
    cotangent = mx.zeros((1, heads, queries, values), dtype)

    def gradient(stream: Any) -> mx.array:
        def outputs(q: mx.array, k: mx.array, v: mx.array, *more: mx.array) -> mx.array:
            given = options | dict(zip(names, more, strict=True))
            given |= {"precision": precision, "force_fused": True, "stream": stream}
            return cast(mx.array, attention_op(q, k, v, scale=1.0, **given))

        return mx.vjp(outputs, primals, [cotangent])[1][0]

    return gradient


def _quantized_attention(
    queries: int = 512,
    keys: int = 512,
    heads: int = 1,
    kv_heads: int = 1,
    head_dim: int = 64,
    value_dim: int | None = None,
    bits: int = 8,
    group_size: int = 64,
    dtype: mx.Dtype = mx.float16,
    scales_dtype: mx.Dtype | None = None,
    biases_dtype: mx.Dtype | None = None,
    precision: str | None = None,
    having: tuple[str, ...] = (),
) -> _Call:
    options = _attention_options(having, queries, keys, heads)
    scales, biases = scales_dtype or dtype, biases_dtype or scales_dtype or dtype

    def packed(columns: int) -> list[mx.array]:
        rows = _packed(kv_heads * keys, columns, "affine", bits, group_size, scales, biases)
        return [a.reshape(1, kv_heads, keys, -1) for a in rows.arrays if a is not None]

    q = mx.zeros((1, heads, queries, head_dim), dtype)
    k, v = packed(head_dim), packed(head_dim if value_dim is None else value_dim)
    options |= {"group_size": group_size, "bits": bits, "precision": precision}
    return lambda stream: cast(
        mx.array,
        quantized_attention_op(q, k, v, 1.0, **options, force_fused=True, stream=stream),
    )


_EXAMPLES: dict[str, Callable[..., _Call]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "quantized_matmul": _quantized_matmul,
    "scaled_dot_product_attention": _attention,
    "scaled_dot_product_attention_vjp": _attention_vjp,
    "quantized_scaled_dot_product_attention": _quantized_attention,
}
