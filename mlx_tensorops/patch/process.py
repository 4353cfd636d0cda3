"""patch() without a model: MLX's classes themselves run our code, for every model."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_tensorops.patch.modules import (
    Method,
    mlx_method,
    replaced,
    run_look_up,
    run_matmul,
)
from mlx_tensorops.patch.records import Record

_installed: dict[tuple[type[nn.Module], str], Method] = {}


def _only_exact(cls: type[nn.Module], name: str, run: Method) -> Method:
    def method(self: Any, x: mx.array) -> mx.array:
        # A subclass that calls super() keeps the code that it was written against.
        return run(self, x) if type(self) is cls else mlx_method(cls, name)(self, x)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    method.__doc__ = cls.__dict__[name].__doc__
    return method


def install(linear: Record, embedding: Record) -> None:
    """Replace the methods of MLX's two classes."""
    linear_class, embedding_class = nn.QuantizedLinear, nn.QuantizedEmbedding
    runs: dict[tuple[type[nn.Module], str], Method] = {
        (linear_class, "__call__"): lambda self, x: run_matmul(
            linear_class, "__call__", self, x, linear, "bias" in self
        ),
        (embedding_class, "__call__"): lambda self, x: run_look_up(self, x, embedding),
        (embedding_class, "as_linear"): lambda self, x: run_matmul(
            embedding_class, "as_linear", self, x, embedding, False
        ),
    }
    for (cls, name), run in runs.items():
        method = _only_exact(cls, name, run)
        replaced.setdefault((cls, name), cls.__dict__[name])
        _installed[cls, name] = method
        setattr(cls, name, method)


def remove() -> list[str]:
    """Put MLX's methods back; return those that somebody replaced since and that stay."""
    foreign = []
    for (cls, name), method in _installed.items():
        if cls.__dict__[name] is method:
            setattr(cls, name, replaced[cls, name])
        else:
            foreign.append(f"{cls.__name__}.{name}")
    _installed.clear()
    # A method that stays, wrapped by somebody, still needs MLX's.
    if not foreign:
        replaced.clear()
    return foreign
