"""Which function constants a kernel needs: those that it, or what it calls, mentions.

Names stand for all declarations that have them, so that the answer errs on the side of more. A
member is reached through the class that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlx_tensorops.testing.emulator.rewriter.constants import QUERY
from mlx_tensorops.testing.emulator.rewriter.declarations import CLASS_KEYS, Declaration
from mlx_tensorops.testing.emulator.rewriter.signatures import (
    name_of_declarator,
    parameters,
)
from mlx_tensorops.testing.emulator.rewriter.tokens import WORD, Source


class Uses:
    """What is mentioned by the declarations of a source. To be made before other passes erase."""

    def __init__(self, source: Source, found: Sequence[Declaration]) -> None:
        self._mentioned: dict[str, set[str]] = {}
        self._queried: dict[str, set[str]] = {}
        for declaration in found:
            # Members are part of what their class mentions.
            name = None if declaration.in_class else _name(source, declaration)
            if name is not None:
                words, queried = _words(source, declaration)
                words -= _hidden(source, declaration, found)
                self._mentioned.setdefault(name, set()).update(words)
                self._queried.setdefault(name, set()).update(queried)

    def needed(self, words: Iterable[str], constants: Mapping[str, int]) -> tuple[int, ...]:
        """The indices of those of the constants (by name) that need a value.

        A constant that is asked for with is_function_constant_defined does without one.
        """
        reached: set[str] = set()
        queried: set[str] = set()
        waiting = list(words)
        while waiting:
            word = waiting.pop()
            if word in reached:
                continue
            reached.add(word)
            waiting += self._mentioned.get(word, ())
            queried |= self._queried.get(word, set())
        return tuple(sorted({constants[name] for name in constants.keys() & reached - queried}))


def _name(source: Source, declaration: Declaration) -> str | None:
    if declaration.parameters is not None:
        return source.text(source.previous(declaration.parameters))
    head = list(source.top_level(declaration.specifiers, declaration.head_end))
    if declaration.is_class:
        key = next(k for k, i in enumerate(head) if source.text(i) in CLASS_KEYS)
        names = [source.text(i) for i in head[key + 1 :] if source.kind(i) == WORD]
        return next((name for name in names if name not in ("class", "struct", "alignas")), None)
    if head and source.text(head[0]) == "using" and len(head) > 1:
        return source.text(head[1])
    if head and source.text(head[0]) == "typedef":
        return source.text(head[-1])
    name = name_of_declarator(source, declaration.specifiers, declaration.head_end)
    return source.text(name) if name is not None else None


def _hidden(source: Source, declaration: Declaration, found: Sequence[Declaration]) -> set[str]:
    """The names of its parameters or members, which mean nothing else in there."""
    if declaration.parameters is not None:
        return {parameter.name for parameter in parameters(source, declaration.parameters)}
    if not declaration.is_class:
        return set()
    members = (
        _name(source, inner)
        for inner in found
        if inner.in_class
        and inner.parameters is None
        and declaration.start < inner.start < declaration.end
    )
    return {name for name in members if name is not None}


def _words(source: Source, declaration: Declaration) -> tuple[set[str], set[str]]:
    """The words of the declaration, and those among them that is_function_constant_defined has."""
    words: set[str] = set()
    queried: set[str] = set()
    for i in source.significant(declaration.start, declaration.end):
        before = source.previous(i)
        if source.kind(i) != WORD or source.text(before) in (".", "->"):
            continue
        is_query = source.text(before) == "(" and source.text(source.previous(before)) == QUERY
        (queried if is_query else words).add(source.text(i))
    return words, queried
