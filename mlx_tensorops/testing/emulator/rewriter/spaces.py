"""Address spaces: erased, and with them the overloads that differ in nothing else.

Metal overloads functions, members and specializations on the address space of a pointer or of
*this. Without the keywords these are redefinitions; the first of each is kept.
"""

from __future__ import annotations

from mlx_tensorops.testing.emulator.rewriter.declarations import Declaration
from mlx_tensorops.testing.emulator.rewriter.signatures import (
    ADDRESS_SPACES,
    FOREIGN_SPACES,
    KEPT_SPACES,
    name_of_declarator,
    split,
)
from mlx_tensorops.testing.emulator.rewriter.tokens import WORD, RewriteError, Source

_SPECIFIERS = frozenset({"const", "constexpr", "static", "inline", "volatile"})
_AFTER_MEMBER = frozenset({"{", ":", ";", "=", "const", "noexcept"})


def erase_address_spaces(source: Source, keep: bool = False) -> None:
    """Erase the keywords where they are keywords, or write them so that clang compares them."""
    for i, token in enumerate(source.tokens):
        if token.kind != WORD or source.text(source.previous(i)) in (".", "->", "::"):
            continue
        if token.text in FOREIGN_SPACES:
            raise RewriteError(f"address space {token.text} is not supported", token.place)
        if token.text == "double":
            raise RewriteError("Metal has no double", token.place)
        # What another pass wrote in place of the keyword stays.
        if token.text not in ADDRESS_SPACES or token.out != token.text:
            continue
        if keep and token.text in KEPT_SPACES and not _qualifies_member(source, i):
            source.replace(i, KEPT_SPACES[token.text])
        elif token.text == "constant" and not _qualifies_member(source, i):
            _make_const(source, i)
        else:
            source.erase(i, i + 1)


def _make_const(source: Source, position: int) -> None:
    """Metal's constant memory is const without being called so."""
    around = set()
    for step in (source.previous, source.next):
        i = step(position)
        while source.text(i) in _SPECIFIERS:
            around.add(source.text(i))
            i = step(i)
    source.replace(position, " " if around & {"const", "constexpr"} else "const")


def _qualifies_member(source: Source, position: int) -> bool:
    """Whether the address space is that of *this: `f(...) const device {`."""
    before = source.previous(position)
    if source.text(before) == "const":
        before = source.previous(before)
    return source.text(before) == ")" and source.text(source.next(position)) in _AFTER_MEMBER


def drop_duplicates(source: Source, found: list[Declaration]) -> None:
    """Erase all but the first of the declarations that only their address spaces tell apart.

    To be called after erase_address_spaces: what is compared is what will be compiled.
    """
    first: dict[tuple[object, ...], tuple[Declaration, str]] = {}
    for declaration in found:
        key = _key(source, declaration)
        if key is None:
            continue
        body = source.spell(declaration.head_end, declaration.end)
        if key not in first:
            first[key] = (declaration, body)
            continue
        kept, kept_body = first[key]
        if _spaces(source, declaration) == _spaces(source, kept):
            continue  # the compiler will say that it is defined twice
        if kept_body != body:
            source.warn(
                declaration.start,
                "differs from "
                f"{source.place(kept.start)} in more than the address space; that one is used",
            )
        source.erase(declaration.start, declaration.end)


def _spaces(source: Source, declaration: Declaration) -> list[str]:
    head = source.tokens[declaration.start : declaration.head_end]
    return [token.text for token in head if token.kind == WORD and token.text in ADDRESS_SPACES]


def _key(source: Source, declaration: Declaration) -> tuple[object, ...] | None:
    """What makes a definition another one: scope, template clause, name, types."""
    if all(token.erased for token in source.tokens[declaration.start : declaration.head_end]):
        return None
    clause = source.spell(declaration.start, declaration.specifiers)
    if declaration.is_class:
        head = source.spell(declaration.specifiers, declaration.head_end)
        return (declaration.scope, clause, head) if "<" in head else None
    opening = declaration.parameters
    if opening is None:
        return None
    is_definition = source.text(declaration.head_end) == "{"
    close = source.partner[opening]
    # The result type is part of it: std::enable_if there tells overloads apart.
    result_and_name = source.spell(declaration.specifiers, opening)
    types = tuple(
        _parameter_type(source, start, end) for start, end in split(source, opening + 1, close)
    )
    qualifiers = tuple(
        source.text(i)
        for i in source.top_level(source.next(close), _signature_end(source, declaration, close))
        if source.text(i) in ("const", "volatile", "&")
    )
    return (declaration.scope, clause, result_and_name, types, qualifiers, is_definition)


def _parameter_type(source: Source, start: int, end: int) -> str:
    name = name_of_declarator(source, start, end)
    stop = next((i for i in source.top_level(start, end) if source.text(i) == "="), end)
    if name is None:
        return source.spell(start, stop)
    return source.spell(start, name) + " " + source.spell(name + 1, stop)


def _signature_end(source: Source, declaration: Declaration, close: int) -> int:
    """Where the initializers of a constructor, the body or a default begin."""
    ends = (
        i
        for i in source.top_level(source.next(close), declaration.head_end)
        if source.text(i) in (":", "=", "->")
    )
    return next(ends, declaration.head_end)
