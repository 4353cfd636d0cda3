"""Compound assignments to components of vectors.

Components are properties here, and clang loses track of `v.x += y` in a template whose vector type
depends on its parameters (MLX's elem_to_loc_2_nd): `v.x = v.x + (y)` means the same.
"""

from __future__ import annotations

import re

from mlx_tensorops.testing.emulator.rewriter.tokens import WORD, Source

_COMPONENTS = re.compile(r"[xyzw]{1,4}|[rgba]{1,4}")
_OPERATORS = frozenset({"+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<="})
_SIDE_EFFECTS = frozenset({"++", "--", "="}) | _OPERATORS


def rewrite_compound_assignments(source: Source) -> None:
    """Write them out where the vector is named by an expression that may be evaluated twice."""
    for position in range(len(source)):
        if source.text(position) not in _OPERATORS:
            continue
        name = source.previous(position)
        dot = source.previous(name)
        if source.text(dot) not in (".", "->") or not _COMPONENTS.fullmatch(source.text(name)):
            continue
        start = _object_start(source, dot)
        if start is not None:
            target = source.spell(start, position)
            source.replace(position, f"= {target} {source.text(position)[:-1]} (")
            source.insert_after(_value_end(source, position), ")")


def _object_start(source: Source, dot: int) -> int | None:
    """Where the expression before the dot begins, None if it calls or changes something."""
    start = source.previous(dot)
    while True:
        if source.text(start) == "]":
            opening = source.partner[start]
            inside = {source.text(i) for i in range(opening + 1, start)}
            if inside & _SIDE_EFFECTS or "(" in inside:
                return None
            start = source.previous(opening)
            continue
        if source.kind(start) != WORD:
            return None
        before = source.previous(start)
        if source.text(before) not in (".", "->", "::"):
            return start
        start = source.previous(before)


def _value_end(source: Source, operator: int) -> int:
    """The last token of the expression to the right."""
    last = operator
    has_angles = False
    for i in source.top_level(operator + 1, len(source)):
        text = source.text(i)
        has_angles |= text == "<"
        # In f<a, b>(c) the comma separates template arguments.
        if text in (";", ")", "]", "}", "]]") or (text == "," and not has_angles):
            break
        last = source.partner.get(i, i)
    return last
