"""Several indices in brackets: `t[i, j]` reaches an element of a tensor; C++17 takes one index."""

from __future__ import annotations

from mlx_tensorops.testing.emulator.rewriter.signatures import split
from mlx_tensorops.testing.emulator.rewriter.tokens import WORD, Source

# Words before a bracket that begins a lambda or a structured binding.
_NO_OPERAND = frozenset({"return", "auto", "case", "else", "do", "throw", "operator"})


def rewrite_subscripts(source: Source) -> None:
    """Make one index of several."""
    for opening in range(len(source)):
        closing = source.partner.get(opening, 0)
        if source.text(opening) != "[" or closing < opening or not _is_index(source, opening):
            continue
        if len(list(split(source, opening + 1, closing))) > 1:
            source.replace(opening, "[emu::subscripts(")
            source.replace(closing, ")]")


def _is_index(source: Source, opening: int) -> bool:
    before = source.previous(opening)
    if source.kind(before) == WORD:
        return source.text(before) not in _NO_OPERAND
    return source.text(before) in (")", "]")
