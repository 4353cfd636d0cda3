"""Decide from static facts alone whether our op or MLX's own runs a call.

The decision is made before a graph node exists: MLX is lazy, so an error that surfaces at
``mx.eval`` could no longer be turned into a fallback.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import mlx.core as mx

from mlx_tensorops import _ext

# MLX's defaults for (group_size, bits).
DEFAULTS = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}


class Decision(NamedTuple):
    """Where a call goes: ``dtype`` is MLX's output dtype, an empty ``reason`` means our op."""

    dtype: mx.Dtype
    reason: str


def check_route(who: str, route: str | None) -> str:
    """The route that ``None`` stands for, or the same.

    Raises:
        ValueError: there is no such route.
    """
    chosen = "auto" if route is None else route
    if not isinstance(chosen, str):
        raise ValueError(f'[{who}] route must be "ours", "mlx" or "auto", got {chosen!r}.')
    _ext.check_route(who, chosen)
    return chosen


def is_choice(reason: str) -> bool:
    """Whether MLX's op ran a call because the route said so, not because ours could not."""
    return reason.startswith("route ")


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


def decide(
    op: str,
    x: mx.Dtype | None,
    scales: mx.Dtype,
    biases: mx.Dtype | None,
    group_size: int,
    bits: int,
    mode: str,
    route: str,
    stream: Any = None,
    output: mx.Dtype | None = None,
) -> Decision:
    """Decide by the dtypes of the arrays of a call, as the op itself would.

    Args:
        op: Name of the op.
        x: Of the other operand, None where the op has none.
        scales: Of the scales; for ``quantize``, of the values, which its scales take over.
        biases: Of the biases, None where the mode has none.
        group_size: Values that share a scale.
        bits: Bits of a code.
        mode: Name of the format.
        route: "ours", "mlx" or "auto".
        stream: MLX's ``stream`` argument: a stream, a device, its type, None.
        output: The dtype that the caller asks for, None for the result type of the others.
    """
    place = _ext.place(stream)
    return _decide(op, x, scales, biases, group_size, bits, mode, route, place, output)


# A case that was seen before takes about a microsecond.
@lru_cache(maxsize=4096)
def _decide(
    op: str,
    x: mx.Dtype | None,
    scales: mx.Dtype,
    biases: mx.Dtype | None,
    group_size: int,
    bits: int,
    mode: str,
    route: str,
    place: tuple[str, str],
    output: mx.Dtype | None,
) -> Decision:
    parameters: tuple[mx.Dtype, ...] = (scales,) if biases is None else (scales, biases)
    if mode == "affine" or op == "quantize":
        dtype = mx.result_type(*parameters) if x is None else mx.result_type(x, *parameters)
    else:
        # Scales are bytes: MLX takes x's dtype, and bfloat16 where there is none.
        dtype, parameters = x or mx.bfloat16, ()
    dtype = output or dtype
    # Ours refuses a size below 1 with a message; MLX divides by it and the process dies.
    if group_size < 1 or bits < 1:
        return Decision(dtype, "")
    # Of the op's own operands: x takes MLX's output dtype first.
    names = ("scales", "biases") if op != "quantize" else ("w",)
    dtypes = list(zip(names, parameters, strict=False))
    if op == "quantized_matmul":
        dtypes = [("x", dtype), *dtypes]
    elif op == "dequantize":
        dtypes = [*dtypes, ("the output", dtype)]
    coverage = _ext.coverage(op, place[0], dtypes, bits, group_size, mode)
    return Decision(dtype, _ext.reason_against(*place, *coverage, route))
