"""Variables in threadgroup memory: `threadgroup T x[N];`.

Each becomes a reference to storage that the runtime keeps for the threadgroup.
"""

from __future__ import annotations

from mlx_tensorops.testing.emulator.rewriter.signatures import ADDRESS_SPACES, split
from mlx_tensorops.testing.emulator.rewriter.tokens import FOREIGN, WORD, RewriteError, Source, join

_QUALIFIERS = ADDRESS_SPACES | {"const", "volatile", "static"}


def rewrite_threadgroup_variables(source: Source, space: str = "") -> None:
    """Replace the declarations of threadgroup variables; pointers into the memory stay.

    Args:
        source: the translation unit.
        space: written before the type of the storage, if address spaces are kept.
    """
    position = 0
    while position < len(source):
        start = _statement_start(source, position)
        if start is None:
            position += 1
            continue
        position = _rewrite_statement(source, start, position, space)


def _statement_start(source: Source, position: int) -> int | None:
    """Where the statement begins whose specifiers the `threadgroup` at the position is among."""
    if source.text(position) != "threadgroup" or source.kind(position) != WORD:
        return None
    start = position
    before = source.previous(position)
    if source.text(before) == ")":
        alignas = source.previous(source.partner[before])
        if source.text(alignas) != "alignas":
            return None
        start, before = alignas, source.previous(alignas)
    begins = source.text(before) in ("{", "}", ";", ":") or source.kind(before) in (FOREIGN, "")
    return start if begins else None


def _rewrite_statement(source: Source, start: int, keyword: int, space: str) -> int:
    """Rewrite the declaration if it is one of variables; return where to go on."""
    stop = next(
        (i for i in source.top_level(start, len(source)) if source.text(i) in (";", "{", "=", ")")),
        len(source),
    )
    texts = [source.text(i) for i in source.top_level(start, stop)]
    if source.text(stop) == "{":
        return keyword + 1  # the qualifier of a member function
    if "*" in texts or "&" in texts or "(" in texts[1:] and "alignas" not in texts:
        return keyword + 1
    if source.text(stop) != ";":
        message = "a threadgroup variable cannot be initialized where it is declared"
        raise RewriteError(message, source.place(keyword))
    declarators = [_declarator(source, *part) for part in split(source, start, stop)]
    first_name = declarators[0][0]
    type_text = _type(source, start, first_name)
    names = [(source.text(name), source.spell(name + 1, end)) for name, end in declarators]
    source.erase(start, stop + 1)
    source.insert_after(stop, " ".join(_variable(type_text, space, *name) for name in names))
    return stop + 1


def _declarator(source: Source, start: int, end: int) -> tuple[int, int]:
    """The name of the variable declared in the part, and the end of its array bounds."""
    words = [i for i in source.top_level(start, end) if source.text(i) not in ("[", "[[")]
    if not words or source.kind(words[-1]) != WORD:
        raise RewriteError("cannot read this threadgroup variable", source.place(start))
    return words[-1], end


def _type(source: Source, start: int, name: int) -> str:
    """The type before the first name, without address space and alignment."""
    words: list[str] = []
    position = start
    while position < name:
        if source.text(position) == "alignas":
            position = source.partner[source.next(position)]
        elif source.text(position) not in _QUALIFIERS:
            words.append(source.tokens[position].out)
        position = source.next(position)
    return join(words)


def _variable(type_text: str, space: str, name: str, bounds: str) -> str:
    kind = f"emu_type_{name}"
    # No static_cast leads from one address space to another.
    pointer = f"({space} {kind}*)" if space else f"static_cast<{kind}*>"
    return (
        f"using {kind} = {type_text}{bounds}; static char emu_key_{name}; "
        f"{join((space, kind))}& {name} = "
        f'*{pointer}(emu::tg_variable(&emu_key_{name}, sizeof({kind}), "{name}"));'
    )
