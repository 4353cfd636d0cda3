"""Put our ops in the place of MLX's own names, for programs that know nothing of us."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import mlx.core as mx

from mlx_tensorops import _ext
from mlx_tensorops.ops.dequantize import dequantize
from mlx_tensorops.ops.quantize import quantize
from mlx_tensorops.ops.quantized_matmul import quantized_matmul
from mlx_tensorops.ops.scaled_dot_product_attention import scaled_dot_product_attention
from mlx_tensorops.patch.attention import rebind_imported, why_not
from mlx_tensorops.patch.records import count_op_fallback
from mlx_tensorops.patch.routing import check_route, decide, with_defaults

# MLX's own ops, kept before drop_in() can have replaced them.
_mlx_quantize = mx.quantize
_mlx_dequantize = mx.dequantize
_mlx_quantized_matmul = mx.quantized_matmul
_mlx_attention = mx.fast.scaled_dot_product_attention

ONLY_MLX = "arguments that only MLX takes"


class DropIn:
    """The handle of one ``drop_in()``: ``undo()`` it, or leave its ``with`` block."""

    def __init__(self, route: str) -> None:
        self.route = route

    def undo(self) -> None:
        """Give MLX's names back once every ``drop_in()`` is undone; a second call does nothing."""
        with _lock:
            if self not in _handles:
                return
            _handles.remove(self)
            if not _handles:
                _remove()

    def __enter__(self) -> DropIn:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()


def drop_in(*, route: str | None = None) -> DropIn:
    """Let MLX's quantized ops and its attention run our ops.

    These are ``mx.quantize``, ``mx.dequantize``, ``mx.quantized_matmul`` and
    ``mx.fast.scaled_dot_product_attention``. The names keep MLX's signatures and output dtypes.
    Code that reads them from ``mlx.core`` at each call, as ``mlx.nn`` does, is reached, and so are
    modules that imported them by name (``from mlx.core import quantize``), before or meanwhile.
    References kept elsewhere (default arguments, closures, attributes of objects) and functions
    that ``mx.compile`` has traced keep MLX's ops. What only MLX supports runs MLX's op and is
    counted in ``report()``.

    Calls nest: MLX's ops are back when each handle is undone, in any order; the route is that of
    the last one.

    Args:
        route (str, optional): ``"ours"``, ``"mlx"``, or ``"auto"``: ours, but on a Mac MLX's where
            MLX has a kernel for the very case; as of the ops. Default: ``None``, which is
            ``"auto"``.

    Returns:
        DropIn: Has ``undo()``, and is a context manager that calls it.

    Raises:
        ValueError: there is no such route.

    Example:
        >>> with mto.drop_in():
        ...     y = mx.quantized_matmul(x, w_q, scales, biases)
    """
    handle = DropIn(check_route("drop_in", route))
    with _lock:
        if not _handles:
            _install()
        _handles.append(handle)
    return handle


def _same_docs(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(ours: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(ours)
        functools.update_wrapper(ours, original, updated=())
        # update_wrapper points at MLX's op, whose signature inspect cannot read.
        del ours.__dict__["__wrapped__"]
        ours.__dict__["__signature__"] = signature
        return ours

    return decorate


def _are_arrays(*values: Any) -> bool:
    return all(isinstance(value, mx.array) for value in values)


@_same_docs(_mlx_quantize)
def _quantize(
    w: mx.array,
    /,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    global_scale: mx.array | None = None,
    stream: Any = None,
) -> Any:
    reason = ONLY_MLX
    parameters = with_defaults(group_size, bits, mode)
    if parameters and _are_arrays(w) and global_scale is None:
        reason = decide(
            "quantize", None, w.dtype, None, *parameters, _current_route(), stream
        ).reason
    if not reason:
        return list(quantize(w, group_size, bits, mode, route=_current_route(), stream=stream))
    result = _mlx_quantize(w, group_size, bits, mode, global_scale=global_scale, stream=stream)
    count_op_fallback("quantize", reason)
    return result


@_same_docs(_mlx_dequantize)
def _dequantize(
    w: mx.array,
    /,
    scales: mx.array,
    biases: mx.array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    global_scale: mx.array | None = None,
    dtype: mx.Dtype | None = None,
    *,
    stream: Any = None,
) -> mx.array:
    reason = ONLY_MLX
    parameters = with_defaults(group_size, bits, mode)
    # MLX alone broadcasts biases against scales.
    if (
        parameters
        and _are_arrays(w, scales)
        and (biases is None or (_are_arrays(biases) and biases.shape == scales.shape))
        and global_scale is None
    ):
        biases_dtype = None if biases is None else biases.dtype
        reason = decide(
            "dequantize",
            None,
            scales.dtype,
            biases_dtype,
            *parameters,
            _current_route(),
            stream,
            dtype,
        ).reason
    if not reason:
        return dequantize(
            w,
            scales,
            biases,
            group_size,
            bits,
            mode,
            dtype=dtype,
            route=_current_route(),
            stream=stream,
        )
    result = _mlx_dequantize(
        w, scales, biases, group_size, bits, mode, global_scale, dtype, stream=stream
    )
    count_op_fallback("dequantize", reason)
    return result


@_same_docs(_mlx_quantized_matmul)
def _quantized_matmul(
    x: mx.array,
    w: mx.array,
    /,
    scales: mx.array,
    biases: mx.array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    stream: Any = None,
) -> mx.array:
    reason = ONLY_MLX
    parameters = with_defaults(group_size, bits, mode)
    if parameters and _are_arrays(x, w, scales) and (biases is None or _are_arrays(biases)):
        biases_dtype = None if biases is None else biases.dtype
        dtype, reason = decide(
            "quantized_matmul",
            x.dtype,
            scales.dtype,
            biases_dtype,
            *parameters,
            _current_route(),
            stream,
        )
    if not reason:
        if x.dtype != dtype:
            x = x.astype(dtype, stream=stream)
        return quantized_matmul(
            x,
            w,
            scales,
            biases,
            transpose,
            group_size,
            bits,
            mode,
            route=_current_route(),
            stream=stream,
        )
    result = _mlx_quantized_matmul(
        x, w, scales, biases, transpose, group_size, bits, mode, stream=stream
    )
    count_op_fallback("quantized_matmul", reason)
    return result


@_same_docs(_mlx_attention)
def _scaled_dot_product_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: str | mx.array | None = None,
    sinks: mx.array | None = None,
    force_fused: bool = False,
    stream: Any = None,
) -> Any:
    reason = ONLY_MLX
    if _are_arrays(q, k, v) and q.ndim > 0 and v.ndim > 0:
        dtype = mx.result_type(q, k, v)
        place = _ext.place(stream)
        reason = why_not(dtype, q.shape[-1], v.shape[-1], place, _current_route())
    if not reason:
        return scaled_dot_product_attention(
            q,
            k,
            v,
            scale=scale,
            mask=mask,
            sinks=sinks,
            route=_current_route(),
            force_fused=force_fused,
            stream=stream,
        )
    result = _mlx_attention(
        q, k, v, scale=scale, mask=mask, sinks=sinks, force_fused=force_fused, stream=stream
    )
    count_op_fallback("scaled_dot_product_attention", reason)
    return result


_lock = threading.RLock()
_handles: list[DropIn] = []
_replacements: dict[str, tuple[ModuleType, Callable[..., Any], Callable[..., Any]]] = {
    "quantize": (mx, _mlx_quantize, _quantize),
    "dequantize": (mx, _mlx_dequantize, _dequantize),
    "quantized_matmul": (mx, _mlx_quantized_matmul, _quantized_matmul),
    "scaled_dot_product_attention": (mx.fast, _mlx_attention, _scaled_dot_product_attention),
}
# What mlx.core held: usually MLX's ops, or what another program had put there.
_previous: dict[str, Any] = {}


def _current_route() -> str:
    # Another thread may undo the last handle while this one is in a call.
    handles = _handles[-1:]
    return handles[0].route if handles else "auto"


def _install() -> None:
    for name, (owner, original, ours) in _replacements.items():
        _previous[name] = getattr(owner, name)
        setattr(owner, name, ours)
        rebind_imported(original, ours)


def _remove() -> None:
    for name, (owner, original, ours) in _replacements.items():
        # Where somebody replaced ours since, the name is theirs to give back.
        if getattr(owner, name) is ours:
            setattr(owner, name, _previous.pop(name))
        rebind_imported(ours, original)
