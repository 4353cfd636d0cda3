"""Decide from static facts alone whether our op or MLX's own runs a call.

The decision is made before a graph node exists: MLX is lazy, so an error that surfaces at
``mx.eval`` could no longer be turned into a fallback.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import mlx.core as mx

from mlx_tensorops import _ext

PARAMETER_DTYPES = (mx.float32, mx.float16, mx.bfloat16)

# MLX's defaults for (group_size, bits).
DEFAULTS = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}


class Route(NamedTuple):
    """Where a call goes: ``dtype`` is MLX's output dtype, an empty ``reason`` means our op."""

    dtype: mx.Dtype
    reason: str


def backend(is_cpu: bool) -> str:
    """The name of the backend that runs a call, as the extension has it."""
    if is_cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def with_defaults(
    group_size: int | None, bits: int | None, mode: str
) -> tuple[int, int, str] | None:
    """Fill in MLX's defaults; None where MLX itself must say what is wrong with a value."""
    if mode not in DEFAULTS or not all(isinstance(v, int | None) for v in (group_size, bits)):
        return None
    default_group_size, default_bits = DEFAULTS[mode]
    return (
        default_group_size if group_size is None else group_size,
        default_bits if bits is None else bits,
        mode,
    )


def on_cpu(stream: Any = None) -> bool:
    """Whether MLX's ``stream`` argument (a stream, a device, its type, None) names a CPU."""
    if stream is None:
        return mx.default_device().type == mx.cpu
    device = getattr(stream, "device", stream)
    return bool(getattr(device, "type", device) == mx.cpu)


@lru_cache(maxsize=4096)
def route(
    op: str,
    x: mx.Dtype | None,
    scales: mx.Dtype,
    biases: mx.Dtype | None,
    group_size: int,
    bits: int,
    mode: str,
    is_cpu: bool,
    output: mx.Dtype | None = None,
) -> Route:
    """Route a call by the dtypes of its arrays; under a microsecond once a case was seen.

    Args:
        op: Name of the op.
        x: Of the other operand, None where the op has none.
        scales: Of the scales; for ``quantize``, of the values, which its scales take over.
        biases: Of the biases, None where the mode has none.
        group_size: Values that share a scale.
        bits: Bits of a code.
        mode: Name of the format.
        is_cpu: Whether the call runs on a CPU stream.
        output: The dtype that the caller asks for, None for the result type of the others.
    """
    parameters = (scales,) if biases is None else (scales, biases)
    dtype = mx.result_type(*parameters) if x is None else mx.result_type(x, *parameters)
    dtype = output or dtype
    # Ours refuses a size below 1 with a message; MLX divides by it and the process dies.
    if group_size < 1 or bits < 1:
        return Route(dtype, "")
    reason = _ext.supports(op, backend(is_cpu), dtype, bits, group_size, mode)
    if not reason and any(parameter not in PARAMETER_DTYPES for parameter in parameters):
        reason = f"scales and biases of {' and '.join(map(str, parameters))}"
    return Route(dtype, reason)
