"""Casts such as `(device float*)p`: clang lets them change the address space, Metal does not."""

from __future__ import annotations

from mlx_tensorops.testing.emulator.rewriter.signatures import ADDRESS_SPACES
from mlx_tensorops.testing.emulator.rewriter.tokens import NUMBER, STRING, WORD, Source

_UNARY = frozenset("&*+-~!") | {"++", "--"}
_BEFORE_CAST = frozenset({"return", "case", "else", "do"})
# A function that takes a pointer in one address space to a pointer in the same.
CAST = "emu_cast"
CAST_DEFINITION = f"""\
template <class P> constexpr int emu_space = 0;
template <class T> constexpr int emu_space<__attribute__((address_space(1))) T*> = 1;
template <class T> constexpr int emu_space<__attribute__((address_space(2))) T*> = 2;
template <class T> constexpr int emu_space<__attribute__((address_space(3))) T*> = 3;
template <bool> struct emu_allowed;
template <> struct emu_allowed<true> {{ using yes = int; }};
template <class To, class From, typename emu_allowed<
    !__is_pointer(From) || emu_space<To> == emu_space<From>>::yes = 0>
To {CAST}(From from) {{ return (To)from; }}
"""


def check_casts(source: Source) -> None:
    """Make calls of casts to pointers, so that the compiler compares address spaces.

    To be called before the address spaces are erased.
    """
    for opening in range(len(source)):
        if source.text(opening) != "(" or not _is_cast(source, opening):
            continue
        close = source.partner[opening]
        end = _operand_end(source, source.next(close))
        if end is not None:
            source.replace(opening, f"{CAST}<")
            source.replace(close, ">(")
            source.insert_after(end - 1, ")")


def _is_cast(source: Source, opening: int) -> bool:
    before, close = source.previous(opening), source.partner[opening]
    if source.kind(before) == WORD and source.text(before) not in _BEFORE_CAST:
        return False
    words = [source.text(i) for i in source.significant(opening + 1, close)]
    if not words or words[-1] != "*" or not ADDRESS_SPACES & set(words):
        return False
    return not {"(", ",", "="} & set(words)


def _operand_end(source: Source, position: int) -> int | None:
    """One past the unary expression that begins at the position."""
    while source.text(position) in _UNARY:
        position = source.next(position)
    if source.text(position) == "(":
        position = source.partner[position] + 1
    elif source.kind(position) in (WORD, NUMBER, STRING):
        position += 1
    else:
        return None
    return _postfix_end(source, position)


def _postfix_end(source: Source, end: int) -> int:
    while True:
        position = source.next(end - 1)
        text = source.text(position)
        if text in ("(", "["):
            end = source.partner[position] + 1
        elif text in (".", "->", "::"):
            end = source.next(position) + 1
        elif text == "<":
            angle = source.angle_end(position, len(source))
            following = source.text(source.next(angle)) if angle is not None else ""
            if angle is None or following not in ("(", "::"):
                return end
            end = angle + 1
        else:
            return end
