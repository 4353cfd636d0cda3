"""Floating literals: float without a suffix, and the 16-bit types, which clang does not know."""

from __future__ import annotations

import re

from mlx_tensorops.testing.emulator.rewriter.tokens import NUMBER, RewriteError, Source

# In hexadecimal, b and f are digits where no exponent comes before them.
_LITERAL = re.compile(
    r"(?P<value>0[xX][\da-fA-F.']+[pP][-+]?[\d']+|[\d']*\.?[\d']+(?:[eE][-+]?[\d']+)?|[\d']+\.(?:[eE][-+]?[\d']+)?)"
    r"(?P<suffix>h|H|bf|BF)"
)
_LONG_DOUBLE = re.compile(r"(?:0[xX][\w.']*[pP]|[\d']*\.|\d[\d']*[eE])[\w.'+-]*[lL]")
# Clang's option to read them as float does not reach into templates.
_FLOAT = re.compile(
    r"0[xX][\da-fA-F.']+[pP][-+]?\d+|[\d']*\.[\d']+(?:[eE][-+]?\d+)?|[\d']+\.(?:[eE][-+]?\d+)?"
    r"|\d[\d']*[eE][-+]?\d+"
)


def rewrite_literals(source: Source) -> None:
    """Make 1.5 a float, 1.5h one of clang's half type, and 1.5bf a conversion to bfloat."""
    for position, token in enumerate(source.tokens):
        if token.kind != NUMBER:
            continue
        if _LONG_DOUBLE.fullmatch(token.text):
            raise RewriteError("Metal has no double", token.place)
        literal = _LITERAL.fullmatch(token.text)
        if literal is None:
            if _FLOAT.fullmatch(token.text):
                source.replace(position, token.text + "f")
            continue
        value = literal["value"]
        if not set(value) & set(".eEpP"):
            value += ".0"
        is_half = literal["suffix"] in "hH"
        source.replace(position, f"{value}f16" if is_half else f"::bfloat({value}f)")
