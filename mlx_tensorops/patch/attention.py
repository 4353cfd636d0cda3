"""mlx-lm's attention: one dispatcher in the place of its function, on inside patched modules.

Models import ``mlx_lm.models.base.scaled_dot_product_attention`` by name, so every module that
holds it is given the dispatcher instead. It runs our ops while a method of a patched attention
module is on the stack: those methods are called again when gradient checkpointing recomputes a
layer, which a scope around the whole model would miss.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_tensorops import _ext
from mlx_tensorops.ops.quantized_scaled_dot_product_attention import (
    quantized_scaled_dot_product_attention,
)
from mlx_tensorops.ops.scaled_dot_product_attention import scaled_dot_product_attention
from mlx_tensorops.patch.records import Record

BASE = "mlx_lm.models.base"
NAME = "scaled_dot_product_attention"


class _Scope(threading.local):
    """The record of the patched module that runs on this thread."""

    record: Record | None = None


_scope = _Scope()
_records: set[Record] = set()
_everywhere: Record | None = None
_originals: dict[str, Callable[..., Any]] = {}
_classes: dict[type[nn.Module], type[nn.Module]] = {}


@functools.lru_cache(maxsize=1024)
def why_not(
    dtype: mx.Dtype,
    d: int,
    d_v: int,
    place: tuple[str, str],
    route: str,
    mlx_has_kernel: bool = True,
) -> str:
    """Why MLX's code runs such an attention; empty where our op does. ``place`` as _ext has it."""
    unsupported = _ext.supports_attention(place[0], dtype, d, d_v)
    return _ext.reason_against(*place, unsupported, mlx_has_kernel, route)


def _dispatch(
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> Any:
    record = _scope.record or _everywhere
    if record is not None:
        is_packed = hasattr(cache, "bits")
        arrays = (queries, keys[1], values[1]) if is_packed else (queries, keys, values)
        dtype = mx.result_type(*arrays)
        d_v = queries.shape[-1] if is_packed else values.shape[-1]
        route = record.route
        # mlx-lm composes the attention over packed keys and values of several ops.
        reason = why_not(
            dtype, queries.shape[-1], d_v, _ext.place(None), route, mlx_has_kernel=not is_packed
        )
        if not reason:
            queries = queries.astype(dtype)
            out = run_attention(route, queries, keys, values, cache, scale, mask, sinks)
            record.count_op()
            return out
        record.given_to_mlx(reason)
    return _originals[NAME](queries, keys, values, cache, scale=scale, mask=mask, sinks=sinks)


def run_attention(
    route: str,
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
    softcap: float | None = None,
) -> Any:
    """Run our op over what a cache of mlx-lm returns: arrays, or the parts of packed ones."""
    options: dict[str, Any] = {"sinks": sinks, "softcap": softcap, "route": route}
    if not hasattr(cache, "bits"):
        return scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, **options
        )
    return quantized_scaled_dot_product_attention(
        queries, keys, values, scale, mask, cache.group_size, cache.bits, **options
    )


def _names_used(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_used(constant)


def _calls_attention(method: Any) -> bool:
    if not isinstance(method, FunctionType) or NAME not in _names_used(method.__code__):
        return False
    # The same name may be an attribute, as that of mx.fast is, or the model's own function.
    return method.__globals__.get(NAME) in (_dispatch, _mlx_lm_function())


def _mlx_lm_function() -> Any:
    if _originals:
        return _originals[NAME]
    module = sys.modules.get(BASE)
    return None if module is None else vars(module).get(NAME)


def patched_class(cls: type[nn.Module], mixin: type) -> type[nn.Module] | None:
    """The class that turns the dispatcher on; None where ``cls`` calls no attention of mlx-lm."""
    if cls in _classes:
        return _classes[cls]
    if _mlx_lm_function() is None:
        return None
    methods = {name: inspect.getattr_static(cls, name) for name in dir(cls)}
    names = [name for name, method in methods.items() if _calls_attention(method)]
    if not names:
        return None
    members: dict[str, Any] = {"_mlx_class": cls, "__doc__": cls.__doc__}
    members |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    members |= {name: _in_scope(cls, name) for name in names}
    _classes[cls] = type(cls.__name__, (mixin, cls), members)
    return _classes[cls]


def is_patched(cls: type) -> bool:
    """Whether ``patched_class`` made this class."""
    return cls in _classes.values()


def _in_scope(cls: type[nn.Module], name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(cls, name))
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, _scope.record = _scope.record, self._mto_record
        try:
            return getattr(cls, name)(self, *args, **kwargs)
        finally:
            _scope.record = before

    return run


def hold(record: Record, everywhere: bool = False) -> None:
    """Install the dispatcher, if it is not, for a record that counts its calls."""
    global _everywhere
    if not _records:
        _install()
    _records.add(record)
    if everywhere:
        _everywhere = record


def release(record: Record) -> None:
    """Give mlx-lm its function back once no record is held."""
    global _everywhere
    if record is _everywhere:
        _everywhere = None
    if record in _records:
        _records.discard(record)
        if not _records:
            _remove()


def _install() -> None:
    module = sys.modules.get(BASE)
    if module is None:
        sys.meta_path.insert(0, _finder)
        return
    _originals[NAME] = vars(module)[NAME]
    functools.update_wrapper(_dispatch, _originals[NAME])
    rebind_imported(_originals[NAME], _dispatch)


def _remove() -> None:
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    if _originals:
        # Also in modules that were imported meanwhile.
        rebind_imported(_dispatch, _originals[NAME])
        _originals.clear()


class _Finder(importlib.abc.MetaPathFinder):
    """Installs the dispatcher as soon as mlx-lm's module is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the other finders find the module, and add a step behind its execution."""
        if name != BASE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_install(module: ModuleType) -> None:
                execute(module)
                if _records:
                    _install()

            spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


_finder = _Finder()


def rebind_imported(old: object, new: object) -> None:
    """Replace an object in the namespace of every module but ours."""
    package = __name__.partition(".")[0]
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == package or not isinstance(module, ModuleType):
            continue
        # Only the namespace itself: getattr on a lazy module would import its parts.
        for name, value in list(vars(module).items()):
            if value is old:
                vars(module)[name] = new
