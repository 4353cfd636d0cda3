"""The declarations of namespaces and classes: enough of C++'s grammar to find them, no more.

Function bodies are not looked into. What follows is the shape of a declaration::

    template <...> [[kernel]] void name(parameters) const device { body }
    ^start         ^specifiers     ^parameters      ^signature_end    ^end
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlx_tensorops.testing.emulator.rewriter.tokens import FOREIGN, WORD, Source

CLASS_KEYS = frozenset({"struct", "class", "union", "enum"})
_SPECIFIERS = frozenset(
    {"typedef", "static", "constexpr", "const", "inline", "extern", "volatile", "friend"}
)
# Words whose parentheses are not a parameter list.
_CALLABLE_SPECIFIERS = frozenset({"alignas", "decltype", "noexcept", "__attribute__", "typeof"})


@dataclass(slots=True)
class Declaration:
    """One declaration; positions as in Source, ends exclusive."""

    start: int
    specifiers: int
    head_end: int
    end: int
    scope: tuple[str, ...]
    in_class: bool
    is_class: bool
    parameters: int | None = None

    @property
    def is_template(self) -> bool:
        """Whether it begins with a template clause."""
        return self.specifiers > self.start


def declarations(source: Source) -> list[Declaration]:
    """All declarations of the source, the outer ones before those that they contain."""
    return list(_scan(source, 0, len(source), (), False))


def _scan(
    source: Source, position: int, end: int, scope: tuple[str, ...], in_class: bool
) -> Iterator[Declaration]:
    position = source.next(position - 1)
    while position < end:
        skipped = _not_a_declaration(source, position)
        if skipped is not None:
            position = skipped
            continue
        specifiers = _after_template_clauses(source, position, end)
        stop = _terminator(source, specifiers, end)
        inner = _namespace(source, specifiers, stop)
        if inner is not None:
            yield from _scan(source, stop + 1, source.partner[stop], scope + inner, False)
            position = source.next(source.partner[stop])
            continue
        is_class = source.text(stop) == "{" and _is_class_head(source, specifiers, stop)
        parameters = None if is_class else find_parameters(source, specifiers, stop)
        after = _end(source, stop, end, parameters is not None)
        yield Declaration(position, specifiers, stop, after, scope, in_class, is_class, parameters)
        if is_class:
            name = _class_name(source, specifiers, stop)
            yield from _scan(source, stop + 1, source.partner[stop], (*scope, name), True)
        position = source.next(after - 1)


def _not_a_declaration(source: Source, position: int) -> int | None:
    """Where to go on if there is a stray ';', an access specifier or foreign text."""
    if source.text(position) == ";" or source.kind(position) == FOREIGN:
        return source.next(position)
    following = source.next(position)
    if (
        source.text(position) in ("public", "private", "protected")
        and source.text(following) == ":"
    ):
        return source.next(following)
    return None


def _after_template_clauses(source: Source, position: int, end: int) -> int:
    while source.text(position) == "template":
        angle = source.next(position)
        if source.text(angle) != "<":
            break  # an explicit instantiation
        close = source.angle_end(angle, end)
        if close is None:
            break
        position = source.next(close)
    return position


def _terminator(source: Source, position: int, end: int) -> int:
    """The ';' or '{' that ends the head of the declaration."""
    for i in source.top_level(position, end):
        if source.text(i) in (";", "{") or source.kind(i) == FOREIGN:
            return i
    return end


def _namespace(source: Source, start: int, stop: int) -> tuple[str, ...] | None:
    """The names that a namespace or an extern "C" block adds to the scope, None for others."""
    if source.text(stop) != "{":
        return None
    words = [i for i in source.top_level(start, stop) if source.text(i) != "inline"]
    if words and source.text(words[0]) == "namespace":
        return tuple(source.text(i) for i in words[1:] if source.kind(i) == WORD)
    is_linkage = len(words) == 2 and source.text(words[0]) == "extern"
    return () if is_linkage else None


def _is_class_head(source: Source, start: int, stop: int) -> bool:
    for i in source.top_level(start, stop):
        if source.text(i) in CLASS_KEYS:
            return find_parameters(source, source.next(i), stop) is None
        if source.text(i) not in _SPECIFIERS and source.text(i) != "[[":
            return False
    return False


def _class_name(source: Source, start: int, stop: int) -> str:
    words = list(source.top_level(start, stop))
    key = next(k for k, i in enumerate(words) if source.text(i) in CLASS_KEYS)
    colon = next((k for k, i in enumerate(words) if source.text(i) == ":"), len(words))
    last = words[colon] if colon < len(words) else stop
    return source.spell(source.next(words[key]), last)


def _end(source: Source, stop: int, end: int, is_function: bool) -> int:
    """One past the last token of the declaration whose head ends at stop."""
    if source.text(stop) != "{":
        return min(stop + 1, end)
    close = source.partner[stop]
    following = source.next(close)
    if is_function:
        # The braces of `: member{1}, other{2} {` initialise; the body comes last.
        while source.text(following) in (",", "{"):
            body = _terminator(source, following, end)
            if source.text(body) != "{":
                return min(body + 1, end)
            close = source.partner[body]
            following = source.next(close)
        return close + 1
    return min(_terminator_semicolon(source, following, end) + 1, end)


def _terminator_semicolon(source: Source, position: int, end: int) -> int:
    return next((i for i in source.top_level(position, end) if source.text(i) == ";"), end)


def find_parameters(source: Source, start: int, stop: int) -> int | None:
    """The '(' of the parameter list in a declaration's head, if it declares a function."""
    i = start
    while i < stop:
        text = source.text(i)
        if text == "operator":
            i = source.next(i)
            is_call = source.text(i) == "("  # operator()(...)
            i = source.next(source.partner[i]) if is_call else source.next(i)
            return next((j for j in range(i, stop) if source.text(j) == "("), None)
        if text == "=":
            return None
        if text == "(":
            if source.text(source.previous(i)) not in _CALLABLE_SPECIFIERS:
                return i
            i = source.partner[i]
        elif text == "<":
            i = source.angle_end(i, stop) or i
        elif i in source.partner and source.partner[i] > i:
            i = source.partner[i]
        i = source.next(i)
    return None
