"""patch, unpatch, patched, report: who holds which module, and the way back."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from mlx_tensorops import _ext
from mlx_tensorops.layers import BlockEmbedding, BlockLinear
from mlx_tensorops.patch import attention, attention_adapters, process
from mlx_tensorops.patch.modules import PATCHED, patched_class, record_of, swap_in, swap_out
from mlx_tensorops.patch.records import (
    PatchWarning,
    Record,
    all_op_fallbacks,
    all_records,
    clear_records,
    new_record,
)
from mlx_tensorops.patch.report import EVERY_MODEL, LeftAlone, ModuleRow, OpRow, Report
from mlx_tensorops.patch.routing import check_route


@dataclass(eq=False)
class _Scope:
    """One call of patch: what it holds until the matching unpatch."""

    model: weakref.ref[nn.Module] | None
    route: str
    records: list[Record] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)


# They run our ops already.
OURS = (BlockLinear, BlockEmbedding)

_lock = threading.RLock()
_scopes: list[_Scope] = []
_ended_left_alone: list[LeftAlone] = []


def patch(
    model: nn.Module | None = None, *, strict: bool = False, route: str | None = None
) -> Report:
    """Route the quantized layers and the attention of ``model`` through our ops.

    Every module whose class is exactly ``nn.QuantizedLinear`` or ``nn.QuantizedEmbedding``, or
    whose methods call mlx-lm's ``scaled_dot_product_attention``, gets another class in place, and
    so do attention modules of gemma2, plamo2 and muse_spark's images, which do without it; its
    arrays, its place in the model and ``isinstance`` stay as they are, and so do its output
    dtypes. A query whose mask shows it no key, as in padded batches, attends to nothing: 0.
    Subclasses and other quantized modules are left alone and
    listed in the report. A call that our ops do not support (a dtype, ...) runs
    MLX's code, is counted in ``report()``, and warns once per reason.

    Calls nest: a module stays patched until as many ``unpatch`` calls as ``patch`` calls named it,
    and the last of these says whose code runs it. Copies (``copy.deepcopy``) and pickles of a
    patched module are plain MLX modules, and so are modules added later, as by fusing adapters:
    patch again to route them.

    Without a model, MLX's two classes and mlx-lm's function themselves are patched: every model
    of the process, loaded before or after, is routed until ``unpatch()``, under the same rule of
    exact classes; the attention of these three keeps its own code.

    A function that ``mx.compile`` traced before keeps MLX's code, and one that it traces while
    patched keeps ours after ``unpatch``: patch before the first compiled call. A model that ran
    although ``report()`` shows modules never called is the sign of it.

    Args:
        model (mlx.nn.Module, optional): The model to patch. Default: ``None``, every model.
        strict (bool): Refuse, before anything is changed, a model that has no module to patch
            or a quantized module that would be left alone; needs a model. Default: ``False``.
        route (str, optional): ``"ours"``, ``"mlx"``, or ``"auto"``: ours, but on a Mac MLX's where
            MLX has a kernel for the very case; as of the ops. What MLX's code runs by choice is no
            fallback, does not warn, and is counted apart. Default: ``None``, which is ``"auto"``.

    Returns:
        Report: What this call patched and what it left alone.

    Raises:
        ValueError: ``model`` is no module, there is no such route, or ``strict`` found a reason to
            refuse.

    Example:
        >>> mto.patch(model)
        >>> mlx_lm.generate(model, tokenizer, prompt="Hello")
        >>> print(mto.report())
    """
    return _snapshot([_enter(model, strict, route)])


def unpatch(model: nn.Module | None = None) -> None:
    """Undo the last ``patch`` of this very model, or without a model the last ``patch()``.

    Modules that have left the model since, as adapters do when fused, are given their class back
    too. A model that is not patched is left as it is.

    Args:
        model (mlx.nn.Module, optional): The model that was given to ``patch``. Default: ``None``.
    """
    with _lock:
        for scope in reversed(_scopes):
            held = None if scope.model is None else scope.model()
            if held is model and (scope.model is None) == (model is None):
                return _leave(scope)
    if model is not None and any(record_of(module) for _, module in _named_modules(model)):
        warnings.warn(
            "[unpatch] model must be the module that patch() was given; the patched modules in it "
            "belong to a patch of another one and stay patched.",
            PatchWarning,
            stacklevel=2,
        )


@contextmanager
def patched(
    model: nn.Module | None = None, *, strict: bool = False, route: str | None = None
) -> Iterator[nn.Module | None]:
    """Patch for the length of a ``with`` block, however it ends.

    Args:
        model (mlx.nn.Module, optional): As for ``patch``. Default: ``None``.
        strict (bool): As for ``patch``. Default: ``False``.
        route (str, optional): As for ``patch``. Default: ``None``.

    Yields:
        The model.

    Example:
        >>> with mto.patched(model):
        ...     logits = model(tokens)
    """
    scope = _enter(model, strict, route)
    try:
        yield model
    finally:
        _leave(scope)


def report() -> Report:
    """Take a snapshot of all counts since the start or the last ``reset_report``.

    Returns:
        Report: The modules that are patched or have been, the modules left alone, and the
        counters of our ops.
    """
    with _lock:
        return _snapshot(_scopes, all_records(), _ended_left_alone)


def reset_report() -> None:
    """Set all counts to zero, forget modules no longer patched, let fallbacks warn again."""
    with _lock:
        clear_records()
        _ended_left_alone.clear()
        _ext.reset_counters()


def _module(model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ValueError(f"[patch] model must be an mlx.nn.Module, got {type(model).__name__}.")
    return model


def _named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    # MLX's method has no annotations.
    return cast(list[tuple[str, nn.Module]], cast(Any, _module(model)).named_modules())


def _enter(model: nn.Module | None, strict: bool, route: str | None) -> _Scope:
    chosen = check_route("patch", route)
    with _lock:
        _drop_dead_scopes()
        if model is None:
            if strict:
                raise ValueError("[patch] strict must be False without a model, got True.")
            scope = _enter_process(chosen)
        else:
            scope = _enter_model(_module(model), strict, chosen)
        _scopes.append(scope)
        return scope


def _enter_process(route: str) -> _Scope:
    new = _Scope(None, route)
    for scope in _scopes:
        if scope.model is None:
            return _hold(new, scope.records)
    records = [new_record(EVERY_MODEL, cls.__name__) for cls in PATCHED]
    process.install(*records)
    of_attention = new_record(EVERY_MODEL, attention.NAME)
    attention.hold(of_attention, everywhere=True)
    return _hold(new, [*records, of_attention])


def _enter_model(model: nn.Module, strict: bool, route: str) -> _Scope:
    found: dict[int, tuple[nn.Module, list[str]]] = {}
    for path, module in sorted(_named_modules(model), key=lambda pair: _natural(pair[0])):
        found.setdefault(id(module), (module, []))[1].append(path or "(root)")
    targets = [
        (module, paths)
        for module, paths in found.values()
        if patched_class(module) or record_of(module)
    ]
    left_alone = [
        LeftAlone(paths[0], type(module).__name__, reason)
        for module, paths in found.values()
        if (reason := _why_left_alone(module))
    ]
    _check_found(targets, left_alone, strict)
    scope = _Scope(weakref.ref(model), route, left_alone=left_alone)
    for module, paths in targets:
        record = record_of(module)
        if record is None:
            record = new_record(paths[0], type(module).__name__, module)
            record.aliases = paths[1:]
            swap_in(module, record)
        _hold(scope, [record])
    return scope


def _natural(path: str) -> list[tuple[int, str]]:
    # layers.2 before layers.10
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]


def _check_found(
    targets: list[tuple[nn.Module, list[str]]], left_alone: list[LeftAlone], strict: bool
) -> None:
    if strict and left_alone:
        first = left_alone[0]
        raise ValueError(
            f"[patch] model must have no module that patch leaves alone, got "
            f"{len(left_alone)}, the first {first.path} ({first.class_name}): {first.reason}."
        )
    if targets:
        return
    message = (
        "[patch] model must hold an nn.QuantizedLinear, an nn.QuantizedEmbedding or attention of "
        "mlx-lm, got none: nothing is patched."
    )
    if strict:
        raise ValueError(message)
    warnings.warn(message, PatchWarning, stacklevel=5)


def _why_left_alone(module: nn.Module) -> str:
    if patched_class(module) or record_of(module) or isinstance(module, OURS):
        return ""
    for cls in PATCHED:
        if isinstance(module, cls):
            return f"a subclass of nn.{cls.__name__} keeps its own code"
    weight = module.get("weight")
    is_packed = isinstance(weight, mx.array) and mx.issubdtype(weight.dtype, mx.integer)
    if is_packed or isinstance(module, nn.QQLinear):
        return "no patch for this class"
    return attention_adapters.why_left_alone(type(module))


def _hold(scope: _Scope, records: list[Record]) -> _Scope:
    for record in records:
        record.hold(scope, scope.route)
    scope.records += records
    return scope


def _drop_dead_scopes() -> None:
    for scope in list(_scopes):
        if scope.model and scope.model() is None:
            _leave(scope)


def _leave(scope: _Scope) -> None:
    with _lock:
        if scope not in _scopes:
            return
        _scopes.remove(scope)
        _ended_left_alone.extend(row for row in scope.left_alone if row not in _ended_left_alone)
        for record in scope.records:
            record.release(scope)
        free = [record for record in scope.records if not record.holders]
        for record in free:
            attention.release(record)
        if scope.model is None:
            foreign = process.remove() if free else []
        else:
            foreign = [
                f"{record.path} (now a {type(module).__name__})"
                for record in free
                if (module := record.module) is not None and not swap_out(module)
            ]
    # Last, because a program may turn warnings into errors.
    if foreign:
        warnings.warn(
            f"[unpatch] {', '.join(foreign)} changed after patch() and stays as it is.",
            PatchWarning,
            stacklevel=3,
        )


def _snapshot(
    scopes: list[_Scope],
    records: list[Record] | None = None,
    ended_left_alone: list[LeftAlone] | None = None,
) -> Report:
    if records is None:
        records = [record for scope in scopes for record in scope.records]
    left_alone = dict.fromkeys(row for scope in scopes for row in scope.left_alone)
    left_alone.update(dict.fromkeys(ended_left_alone or ()))
    ops = [OpRow(*row) for row in _ext.counters()]
    ops += [OpRow(op, "drop_in", reason, count) for op, reason, count in all_op_fallbacks()]
    return Report(
        modules=tuple(
            ModuleRow(
                record.path,
                record.class_name,
                record.fused,
                dict(record.fallbacks),
                tuple(record.aliases),
                dict(record.by_choice),
            )
            for record in records
        ),
        left_alone=tuple(left_alone),
        ops=tuple(ops),
    )
