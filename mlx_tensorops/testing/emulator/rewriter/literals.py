"""Literals of the 16-bit floating types: clang has no suffixes for Metal's."""

from __future__ import annotations

import re

from mlx_tensorops.testing.emulator.rewriter.tokens import NUMBER, Source

# In hexadecimal, b and f are digits where no exponent comes before them.
_LITERAL = re.compile(
    r"(?P<value>0[xX][\da-fA-F.']+[pP][-+]?[\d']+|[\d']*\.?[\d']+(?:[eE][-+]?[\d']+)?|[\d']+\.(?:[eE][-+]?[\d']+)?)"
    r"(?P<suffix>h|H|bf|BF)"
)


def rewrite_literals(source: Source) -> None:
    """Make 1.5h a literal of clang's half type, and 1.5bf a conversion to bfloat."""
    for position, token in enumerate(source.tokens):
        if token.kind != NUMBER:
            continue
        literal = _LITERAL.fullmatch(token.text)
        if literal is None:
            continue
        value = literal["value"]
        if not set(value) & set(".eEpP"):
            value += ".0"
        is_half = literal["suffix"] in "hH"
        source.replace(position, f"{value}f16" if is_half else f"::bfloat({value}f)")
