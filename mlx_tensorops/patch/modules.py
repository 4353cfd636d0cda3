"""The classes that patched modules become, and the code that they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from mlx_tensorops.ops.dequantize import dequantize
from mlx_tensorops.ops.quantized_matmul import quantized_matmul
from mlx_tensorops.patch import attention, attention_adapters
from mlx_tensorops.patch.records import Record
from mlx_tensorops.patch.routing import decide

RECORD = "_mto_record"

Method = Callable[[Any, mx.array], mx.array]

# What patch() without a model has replaced, so that a fallback still finds MLX's own code.
replaced: dict[tuple[type[nn.Module], str], Method] = {}


def mlx_method(cls: type[nn.Module], name: str) -> Method:
    """MLX's own method, whether or not the class is patched now."""
    return replaced.get((cls, name)) or cast(Method, cls.__dict__[name])


def run_matmul(
    cls: type[nn.Module], name: str, module: Any, x: mx.array, record: Record, has_bias: bool
) -> mx.array:
    """Run ``x @ w.T`` of a quantized layer, ``cls`` and ``name`` being MLX's method for it."""
    if not isinstance(x, mx.array):
        return mlx_method(cls, name)(module, x)
    scales, biases = module["scales"], module.get("biases")
    group_size, bits, mode = module.group_size, module.bits, module.mode
    biases_dtype = None if biases is None else biases.dtype
    route = record.route
    dtype, reason = decide(
        "quantized_matmul", x.dtype, scales.dtype, biases_dtype, group_size, bits, mode, route
    )
    if reason:
        record.given_to_mlx(reason)
        return mlx_method(cls, name)(module, x)
    # MLX's dtype, not x's: a model must not change its working dtype by being patched.
    if x.dtype != dtype:
        x = x.astype(dtype)
    y = quantized_matmul(
        x, module["weight"], scales, biases, True, group_size, bits, mode, route=route
    )
    record.count_op()
    return y + module["bias"] if has_bias else y


def run_look_up(module: Any, x: mx.array, record: Record) -> mx.array:
    """Dequantize the rows ``x`` of a quantized embedding."""
    scales, biases = module["scales"], module.get("biases")
    group_size, bits, mode = module.group_size, module.bits, module.mode
    biases_dtype = None if biases is None else biases.dtype
    route = record.route
    _, reason = decide(
        "dequantize", None, scales.dtype, biases_dtype, group_size, bits, mode, route
    )
    if reason:
        record.given_to_mlx(reason)
        return mlx_method(nn.QuantizedEmbedding, "__call__")(module, x)
    chosen_biases = None if biases is None else biases[x]
    rows = dequantize(
        module["weight"][x], scales[x], chosen_biases, group_size, bits, mode, route=route
    )
    record.count_op()
    return rows


class _Patched:
    """What patched classes share: copies and pickles of them are plain modules.

    A copy belongs to no patch that could undo it, and a pickle must load without this package.
    """

    # Found only by a thread that is inside a call while another one unpatches the module.
    _mto_record = Record("(unpatched meanwhile)", "")
    _mlx_class: type[nn.Module]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Reached through type(module).from_linear(...): new modules are MLX's own.
        return cls._mlx_class(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = {key: value for key, value in self.__dict__.items() if key != RECORD}
        items = iter(cast(nn.Module, self).items())
        return dict.__new__, (self._mlx_class,), state, None, items


class PatchedQuantizedLinear(_Patched, nn.QuantizedLinear):
    """``nn.QuantizedLinear`` through our ``quantized_matmul``."""

    _mlx_class = nn.QuantizedLinear

    def __call__(self, x: mx.array) -> mx.array:
        """Apply the layer."""
        return run_matmul(nn.QuantizedLinear, "__call__", self, x, self._mto_record, "bias" in self)


class PatchedQuantizedEmbedding(_Patched, nn.QuantizedEmbedding):
    """``nn.QuantizedEmbedding`` through our ``dequantize`` and ``quantized_matmul``."""

    _mlx_class = nn.QuantizedEmbedding

    def __call__(self, x: mx.array) -> mx.array:
        """Look up the rows of the indices."""
        return run_look_up(self, x, self._mto_record)

    def as_linear(self, x: mx.array) -> mx.array:
        """Apply the table as the output projection of a tied model."""
        return run_matmul(nn.QuantizedEmbedding, "as_linear", self, x, self._mto_record, False)


PATCHED: dict[type[nn.Module], type[nn.Module]] = {
    nn.QuantizedLinear: PatchedQuantizedLinear,
    nn.QuantizedEmbedding: PatchedQuantizedEmbedding,
}

for _mlx_class, _patched_class in PATCHED.items():
    # repr() of a model and code that reads type(m).__name__ see no difference.
    _patched_class.__name__ = _mlx_class.__name__


def patched_class(module: nn.Module) -> type[nn.Module] | None:
    """What the module's class becomes; None for one that stays, or is patched already."""
    cls = type(module)
    return (
        PATCHED.get(cls)
        or attention_adapters.patched_class(cls, _Patched)
        or attention.patched_class(cls, _Patched)
    )


def _is_patched(cls: type) -> bool:
    made = attention.is_patched(cls) or attention_adapters.is_patched(cls)
    return made or cls in PATCHED.values()


def swap_in(module: nn.Module, record: Record) -> None:
    """Turn a module into its patched class, in place."""
    patched = patched_class(module)
    assert patched is not None
    module.__dict__[RECORD] = record
    cast(Any, module).__class__ = patched
    if attention.is_patched(patched):
        attention.hold(record)


def swap_out(module: nn.Module) -> bool:
    """Give the module its own class back; False where somebody changed the class since."""
    if not isinstance(module, _Patched) or not _is_patched(type(module)):
        return False
    cast(Any, module).__class__ = module._mlx_class
    del module.__dict__[RECORD]
    return True


def record_of(module: nn.Module) -> Record | None:
    """The record of a patched module, None for any other."""
    return module.__dict__.get(RECORD) if _is_patched(type(module)) else None
