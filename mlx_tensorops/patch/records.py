"""What is counted for each patched module, and the one warning each fallback reason gets."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import Counter

import mlx.nn as nn

from mlx_tensorops import _ext
from mlx_tensorops.patch.routing import is_choice

warn_on_fallback = True

_lock = threading.RLock()
_warned: set[str] = set()
_records: list[Record] = []
_by_key: dict[int | str, Record] = {}
_op_fallbacks: Counter[tuple[str, str]] = Counter()


class PatchWarning(UserWarning):
    """A patched module ran MLX's own code, or a patch has nothing to do."""


class Record:
    """The counts of one patched module.

    ``fused`` is bumped without a lock: under the GIL a slot increment is not interrupted, and a
    lock would cost more than the count on a path that runs hundreds of times a token.

    ``holders`` are the patches that hold the module, and the routes that they ask for; ``route`` is
    that of the last one.
    """

    __slots__ = (
        "_module",
        "aliases",
        "by_choice",
        "class_name",
        "fallbacks",
        "fused",
        "holders",
        "path",
        "route",
    )

    def __init__(self, path: str, class_name: str, module: nn.Module | None = None) -> None:
        self.path = path
        self.class_name = class_name
        self.aliases: list[str] = []
        self.fused = 0
        self.fallbacks: dict[str, int] = {}
        self.by_choice: dict[str, int] = {}
        self.holders: dict[int, str] = {}
        self.route = "auto"
        self._module = None if module is None else weakref.ref(module)

    @property
    def module(self) -> nn.Module | None:
        """The module, or None once it is gone or where the record stands for a whole class."""
        return None if self._module is None else self._module()

    def hold(self, holder: object, route: str) -> None:
        """Let a patch hold the module and say whose code runs it."""
        self.holders[id(holder)] = route
        self.route = route

    def release(self, holder: object) -> None:
        """Undo ``hold``: the last patch that still holds the module says whose code runs it."""
        del self.holders[id(holder)]
        self.route = next(reversed(self.holders.values()), "auto")

    def given_to_mlx(self, reason: str, *, warn: bool = True) -> None:
        """Count a call that MLX's own code runs; warn of a fallback when its reason is new."""
        chosen = is_choice(reason)
        with _lock:
            counts = self.by_choice if chosen else self.fallbacks
            counts[reason] = counts.get(reason, 0) + 1
            is_new = reason not in _warned
            _warned.add(reason)
        if is_new and warn and not chosen and warn_on_fallback:
            warnings.warn(
                f"[patch] {self.path} ({self.class_name}) runs MLX's own code: {reason}. "
                "Further calls for this reason are counted in report() without a warning.",
                PatchWarning,
                stacklevel=4,
            )

    def count_op(self) -> None:
        """Count a call of our op by what the op did: it may know that its kernel is wrong."""
        reason = _ext.last_reason()
        if reason:
            # There was a warning that names the kernel.
            self.given_to_mlx(reason, warn=False)
        else:
            self.fused += 1

    def clear(self) -> None:
        """Set the counts to zero."""
        with _lock:
            self.fused = 0
            self.fallbacks = {}
            self.by_choice = {}


def new_record(path: str, class_name: str, module: nn.Module | None = None) -> Record:
    """Register a record, or revive the one that the same living module, or class, had before."""
    key = class_name if module is None else id(module)
    with _lock:
        known = _by_key.get(key)
        if known is not None and known.module is module:
            known.path, known.aliases = path, []
            return known
        record = Record(path, class_name, module)
        _records.append(record)
        _by_key[key] = record
        return record


def all_records() -> list[Record]:
    """Every record since the last reset: of modules patched now, and of those patched before."""
    with _lock:
        return list(_records)


def count_op_fallback(op: str, reason: str) -> None:
    """Count a call that ``drop_in`` hands to MLX's op before ours is asked."""
    with _lock:
        _op_fallbacks[op, reason] += 1


def all_op_fallbacks() -> list[tuple[str, str, int]]:
    """The counts of ``count_op_fallback`` as (op, reason, count)."""
    with _lock:
        return [(op, reason, count) for (op, reason), count in sorted(_op_fallbacks.items())]


def clear_records() -> None:
    """Zero every count, drop what is no longer patched, and let each reason warn again."""
    with _lock:
        for record in _records:
            record.clear()
        _records[:] = [record for record in _records if record.holders]
        for key, record in list(_by_key.items()):
            if not record.holders:
                del _by_key[key]
        _op_fallbacks.clear()
        _warned.clear()
