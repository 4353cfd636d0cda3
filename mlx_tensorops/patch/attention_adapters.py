"""mlx-lm's attention modules that do without its attention function, on our op.

An adapter does what the module's own method does. It was written for the versions of mlx-lm in
``TESTED``; with another version the module keeps its own code, and ``report()`` lists it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_tensorops import _ext
from mlx_tensorops.patch.attention import run_attention, why_not

TESTED = ("0.32.",)


def _split_heads(x: mx.array, n_heads: int) -> mx.array:
    batch, length, _ = x.shape
    return x.reshape(batch, length, n_heads, -1).transpose(0, 2, 1, 3)


def _join_heads(x: mx.array) -> mx.array:
    batch, _, length, _ = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, -1)


def _with_positions(
    module: Any, queries: mx.array, keys: mx.array, values: mx.array, cache: Any
) -> tuple[mx.array, Any, Any]:
    if cache is None:
        return module.rope(queries), module.rope(keys), values
    offset = cache.offset
    fetched = cache.update_and_fetch(module.rope(keys, offset=offset), values)
    return module.rope(queries, offset=offset), *fetched


def _gemma2(module: Any, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
    queries = _split_heads(module.q_proj(x), module.n_heads)
    keys = _split_heads(module.k_proj(x), module.n_kv_heads)
    values = _split_heads(module.v_proj(x), module.n_kv_heads)
    operands = _with_positions(module, queries, keys, values, cache)
    softcap = module.attn_logit_softcapping
    out = run_attention(
        module._mto_record.route, *operands, cache, module.scale, mask, softcap=softcap
    )
    return module.o_proj(_join_heads(out))


def _plamo2(module: Any, hidden_states: mx.array, mask: Any = None, cache: Any = None) -> Any:
    ends = [module.q_proj_dim, module.q_proj_dim + module.k_proj_dim]
    q, k, v = mx.split(module.qkv_proj(hidden_states), ends, axis=-1)
    norm = functools.partial(mx.fast.rms_norm, weight=None, eps=1e-6)
    queries = norm(_split_heads(q, module.q_num_heads)) * module.q_weight[:, None]
    keys = norm(_split_heads(k, module.k_num_heads)) * module.k_weight[:, None]
    values = _split_heads(v, module.v_num_heads)
    operands = _with_positions(module, queries, keys, values, cache)
    out = run_attention(module._mto_record.route, *operands, cache, module.scale, mask)
    return module.o_proj(_join_heads(out))


def _muse_vision(module: Any, q: mx.array, k: mx.array, v: mx.array) -> Any:
    queries, keys, values = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
    out = run_attention(module._mto_record.route, queries, keys, values, None, module.scale, None)
    return out.transpose(0, 2, 1, 3)


@dataclass(frozen=True)
class _Adapter:
    """``run`` in the place of a method, whose first argument is ``x``."""

    method: str
    run: Callable[..., Any]
    x: str
    head_dim: str
    mlx_has_kernel: bool


_ADAPTERS = {
    # MLX's op has no softcap. The names are the modules' own.
    ("mlx_lm.models.gemma2", "Attention"): _Adapter("__call__", _gemma2, "x", "head_dim", False),
    ("mlx_lm.models.plamo2", "Attention"): _Adapter(
        "__call__", _plamo2, "hidden_states", "qk_dim", True
    ),
    ("mlx_lm.models.muse_spark", "VisionAttention"): _Adapter(
        "_attention", _muse_vision, "q", "head_dim", True
    ),
}

_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _adapter_of(cls: type) -> _Adapter | None:
    return _ADAPTERS.get((cls.__module__, cls.__qualname__))


@functools.cache
def _version() -> str:
    try:
        return metadata.version("mlx-lm")
    except metadata.PackageNotFoundError:
        return "of an unknown version"


def why_left_alone(cls: type) -> str:
    """Why a module of this class keeps its own attention; empty for all others."""
    if _adapter_of(cls) is None or _version().startswith(TESTED):
        return ""
    return f"its own attention, known from mlx-lm {TESTED[0]}x, and this is {_version()}"


def patched_class(cls: type[nn.Module], mixin: type) -> type[nn.Module] | None:
    """The class that calls our op; None where there is no adapter for ``cls``."""
    adapter = _adapter_of(cls)
    if adapter is None or why_left_alone(cls):
        return None
    if cls not in _classes:
        members: dict[str, Any] = {"_mlx_class": cls, "__doc__": cls.__doc__}
        members |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        members[adapter.method] = _counted(cls, adapter)
        _classes[cls] = type(cls.__name__, (mixin, cls), members)
    return _classes[cls]


def is_patched(cls: type) -> bool:
    """Whether ``patched_class`` made this class."""
    return cls in _classes.values()


def _counted(cls: type[nn.Module], adapter: _Adapter) -> Callable[..., Any]:
    own = getattr(cls, adapter.method)

    @functools.wraps(own)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        record = self._mto_record
        x = args[0] if args else kwargs[adapter.x]
        d = getattr(self, adapter.head_dim)
        place = _ext.place(None)
        reason = why_not(x.dtype, d, d, place, record.route, adapter.mlx_has_kernel)
        if reason:
            record.given_to_mlx(reason)
            return own(self, *args, **kwargs)
        out = adapter.run(self, *args, **kwargs)
        record.count_op()
        return out

    return run
