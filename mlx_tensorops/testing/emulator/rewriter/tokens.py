"""Preprocessed Metal source as tokens that can be erased or replaced without moving a line.

The preprocessor leaves line markers (``# 12 "file.metal" 1``); they are kept, so that the compiler
reports its errors at the lines of the .metal file. Text from system headers (the emulator's own
headers are given to the compiler as such) is one opaque token a run: only the kernel's own text
is rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

WORD, NUMBER, STRING, PUNCTUATION, SPACE, MARKER, FOREIGN = (
    "word",
    "number",
    "string",
    "punctuation",
    "space",
    "marker",
    "foreign",
)
TRIVIA = (SPACE, MARKER)

# '>' is always a token by itself, so that template argument lists can be matched; '->' and '>='
# are tokens, so that their '>' closes nothing.
_TOKEN = re.compile(
    r"""
    (?P<marker>^\#[^\n]*\n?)
  | (?P<space>\s+)
  | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
  | (?P<word>[A-Za-z_]\w*)
  | (?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
  | (?P<punctuation>\[\[|\]\]|::|->|<<=|<<|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|.)
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_LINE_MARKER = re.compile(
    r'#\s*(?:line\s+)?(?P<line>\d+)(?:\s+"(?P<file>[^"]*)"(?P<flags>[\d ]*))?'
)
_OPENING = {"(": ")", "[": "]", "[[": "]]", "{": "}"}
_CLOSING = set(_OPENING.values())


class RewriteError(ValueError):
    """The rewriter cannot make sense of the source, or does not support what it asks for."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)


@dataclass(slots=True)
class Token:
    """A piece of the source, and what is written in its place."""

    kind: str
    text: str
    line: int
    file: str
    out: str = ""

    def __post_init__(self) -> None:
        self.out = self.text

    @property
    def place(self) -> str:
        """Where the token is, as compilers write it."""
        return f"{self.file}:{self.line}"

    @property
    def erased(self) -> bool:
        """Whether the token's text is gone from the output."""
        return self.kind not in TRIVIA and not self.out.strip()


def own_runs(text: str) -> Iterator[tuple[bool, str]]:
    """Split the text at line markers into runs of the kernel's own and of foreign lines."""
    own = True
    run: list[str] = []
    for line in text.splitlines(keepends=True):
        marker = _LINE_MARKER.match(line)
        if marker and marker["file"] is not None:
            is_own = "3" not in marker["flags"].split() and not marker["file"].startswith("<")
            if is_own != own:
                yield own, "".join(run)
                own, run = is_own, []
        run.append(line)
    yield own, "".join(run)


def lex(text: str) -> list[Token]:
    """Split preprocessed text into tokens; their texts joined are the text."""
    tokens: list[Token] = []
    file, line = "", 1
    for own, run in own_runs(text):
        if not run:
            continue
        if not own:
            tokens.append(Token(FOREIGN, run, line, file))
            continue
        for match in _TOKEN.finditer(run):
            kind = match.lastgroup or PUNCTUATION
            piece = match.group()
            tokens.append(Token(kind, piece, line, file))
            marker = _LINE_MARKER.match(piece) if kind == MARKER else None
            if marker:
                line, file = int(marker["line"]), marker["file"] or file
            else:
                line += piece.count("\n")
    return tokens


def _split_double_brackets(tokens: list[Token]) -> tuple[list[Token], dict[int, int]]:
    """Make ``]]`` that ends ``a[b[i]]`` two tokens, and pair all brackets."""
    result: list[Token] = []
    partner: dict[int, int] = {}
    open_at: list[int] = []

    def close(token: Token) -> None:
        if not open_at:
            raise RewriteError(f"'{token.text}' closes nothing", token.place)
        opening = result[open_at[-1]]
        if _OPENING[opening.text] != token.text:
            raise RewriteError(
                f"'{token.text}' does not close the '{opening.text}' of line {opening.line}",
                token.place,
            )
        partner[open_at[-1]] = len(result)
        partner[len(result)] = open_at.pop()
        result.append(token)

    for token in tokens:
        if token.kind != PUNCTUATION:
            result.append(token)
        elif token.text == "]]" and open_at and result[open_at[-1]].text != "[[":
            for _ in range(2):
                close(Token(PUNCTUATION, "]", token.line, token.file))
        elif token.text in _CLOSING:
            close(token)
        else:
            if token.text in _OPENING:
                open_at.append(len(result))
            result.append(token)
    if open_at:
        opening = result[open_at[-1]]
        raise RewriteError(f"'{opening.text}' is never closed", opening.place)
    return result, partner


def join(words: Iterable[str]) -> str:
    """The words as source text, with spaces only where two would become one."""
    text = ""
    for word in words:
        glued = text[-1:].isalnum() or text.endswith("_")
        text += f" {word}" if glued and (word[:1].isalnum() or word[:1] == "_") else word
    return text


class Source:
    """The tokens of a translation unit, with what every pass needs to walk over them.

    Positions are indices into ``tokens``; ``partner`` maps each bracket to the one it belongs to.
    """

    def __init__(self, text: str) -> None:
        self.tokens, self.partner = _split_double_brackets(lex(text))
        self.warnings: list[str] = []
        self._after: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def text(self, position: int) -> str:
        """The text of the token, "" outside the source."""
        return self.tokens[position].text if 0 <= position < len(self.tokens) else ""

    def kind(self, position: int) -> str:
        """The kind of the token, "" outside the source."""
        return self.tokens[position].kind if 0 <= position < len(self.tokens) else ""

    def place(self, position: int) -> str:
        """File and line of the token."""
        return self.tokens[min(position, len(self.tokens) - 1)].place

    def next(self, position: int) -> int:
        """The next token that is not white space or a marker."""
        position += 1
        while self.kind(position) in TRIVIA:
            position += 1
        return position

    def previous(self, position: int) -> int:
        """The token before that is not white space or a marker."""
        position -= 1
        while self.kind(position) in TRIVIA:
            position -= 1
        return position

    def significant(self, start: int, end: int) -> Iterator[int]:
        """The tokens of start..end (exclusive) that are not white space or markers."""
        return (i for i in range(start, end) if self.tokens[i].kind not in TRIVIA)

    def top_level(self, start: int, end: int) -> Iterator[int]:
        """As significant, without what is inside brackets (the opening brackets included)."""
        position = start
        while position < end:
            if self.kind(position) not in TRIVIA:
                yield position
            position = self.partner[position] + 1 if self._opens(position) else position + 1

    def _opens(self, position: int) -> bool:
        return position in self.partner and self.partner[position] > position

    def angle_end(self, position: int, end: int) -> int | None:
        """The '>' that closes the '<' at the position, if it opens a template argument list."""
        depth = 0
        for i in self.top_level(position, end):
            text = self.text(i)
            depth += (text == "<") - (text == ">")
            if depth == 0:
                return i
            if text in (";", "{"):
                break
        return None

    def spell(self, start: int, end: int) -> str:
        """The tokens start..end (exclusive) with single spaces between words, as in the output."""
        return join(self.tokens[i].out.strip() for i in self.significant(start, end))

    def erase(self, start: int, end: int) -> None:
        """Remove the tokens start..end (exclusive) from the output, line markers excepted."""
        for position in range(start, end):
            self._after.pop(position, None)
            token = self.tokens[position]
            if token.kind != MARKER or not _LINE_MARKER.match(token.text):
                token.out = "\n" * token.text.count("\n") if "\n" in token.text else " "

    def replace(self, position: int, text: str) -> None:
        """Write the text in place of one token."""
        self.tokens[position].out = text

    def insert_after(self, position: int, text: str) -> None:
        """Write the text after the token."""
        self._after[position] = self._after.get(position, "") + text

    def warn(self, position: int, message: str) -> None:
        """Keep a remark for the user."""
        self.warnings.append(f"{self.place(position)}: {message}")

    def output(self) -> str:
        """The rewritten text."""
        after = self._after
        return "".join(
            token.out + after[i] if i in after else token.out for i, token in enumerate(self.tokens)
        )
