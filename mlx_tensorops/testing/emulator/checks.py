"""What Metal's compiler refuses and clang accepts: misuse of address spaces, and the like."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mlx_tensorops.testing.emulator import building, toolchain
from mlx_tensorops.testing.emulator.errors import CompileError
from mlx_tensorops.testing.emulator.rewriter import RewriteError, rewrite_with_spaces
from mlx_tensorops.testing.emulator.rewriter.casts import CAST

_DIAGNOSTIC = re.compile(r"^(?P<place>\S.*?:\d+):\d+: (?P<kind>error|note): (?P<text>.*)$")
_SPACE = re.compile(r"emu_(?P<name>\w+)|address_space\((?P<number>\d)\)")
_NAMES = {"1": "device", "2": "constant", "3": "threadgroup"}
# What assignments to components of vectors are made of.
_COMPONENT = "'this' argument to member function 'put_"
_CHANGED_BY_CAST = f"no matching function for call to '{CAST}'"
_TYPE = re.compile(r"'(?P<spelled>[^']*)'(?: \(aka '(?P<meant>[^']*)'\))?")


def check(
    source: str | os.PathLike[str],
    *,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    defines: Mapping[str, object] | None = None,
    instantiations: Mapping[str, str] | None = None,
    metal_version: int = 400,
    name: str = "kernel.metal",
) -> tuple[str, ...]:
    """Look for mistakes that `compile` cannot see. The arguments are those of `compile`.

    Returns:
        One complaint a mistake, with its line; none if the source is fine.

    Raises:
        CompileError: the source does not compile anyway.
    """
    request = building.request(
        source, include_dirs, defines, instantiations, metal_version, "nothing", name
    )
    complaints = [*_not_ascii(request), *_address_spaces(request)]
    return tuple(dict.fromkeys(complaints))


def _not_ascii(request: building.Request) -> Iterator[str]:
    """MLX hands sources to Metal as ASCII text, comments and all."""
    if isinstance(request.source, Path):
        name, text = request.source.name, request.source.read_bytes()
    else:
        name, text = request.name, request.source.encode()
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.isascii():
            yield f"{name}:{number}: a character beyond ASCII"


def _address_spaces(request: building.Request) -> Iterator[str]:
    """Mistakes that clang finds when address spaces are numbers to it.

    It also refuses what Metal allows, copies of structures between address spaces above all: only
    what it says about pointers and references counts.
    """
    compiler = toolchain.find()
    preprocessed = building.preprocess(compiler, request)
    try:
        text = rewrite_with_spaces(preprocessed, dict(request.instantiations))
    except RewriteError as error:
        raise CompileError(str(error)) from None
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
        file.write(text)
        file.flush()
        flags = [*building.kernel_flags(), *building.WARNING_FLAGS, "-ferror-limit=0"]
        _, _, messages = compiler.run(["-fsyntax-only", "-x", "c++", *flags, file.name])
    for place, message, notes in _errors(messages):
        if _is_misuse(message, notes):
            yield f"{place}: {_readable(message)}"


def _errors(messages: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each error with its notes, those about the emulator's headers left out."""
    place, message = "", ""
    notes: list[str] = []
    for match in filter(None, map(_DIAGNOSTIC.match, messages.splitlines())):
        own = not match["place"].startswith(str(building.sources()))
        if match["kind"] == "note":
            notes += [match["text"]] if own else []
            continue
        if message:
            yield place, message, notes
        place, message, notes = match["place"], match["text"] if own else "", []
    if message:
        yield place, message, notes


def _is_misuse(error: str, notes: Sequence[str]) -> bool:
    if "changes address space" in error or error.startswith(_CHANGED_BY_CAST):
        return True
    # What is const without being constant is so for the compiler, too.
    if error.startswith(("read-only variable", "cannot assign to variable", _COMPONENT)):
        return True
    if error.startswith(("cannot initialize", "assigning to", "reinterpret_cast", "static_cast")):
        return _spaces_differ(error)
    return error.startswith("no matching") and any(map(_rules_out, notes))


def _rules_out(note: str) -> bool:
    """Whether the note says that a function was no candidate for an address space."""
    is_copy = "constructor" in note
    is_reference = "cannot bind reference in" in note and "address space" in note
    return "cannot pass pointer" in note or _spaces_differ(note) or (is_reference and not is_copy)


def _spaces_differ(text: str) -> bool:
    """Whether two pointer types in the message point to different address spaces."""
    kinds = [match["meant"] or match["spelled"] for match in _TYPE.finditer(text)]
    pointers = [kind for kind in kinds if "*" in kind or "[" in kind]
    return len({tuple(_spaces(kind)) for kind in pointers}) > 1


def _spaces(kind: str) -> list[str]:
    found = _SPACE.finditer(kind)
    return [match["name"] or _NAMES.get(match["number"], "") for match in found]


def _readable(text: str) -> str:
    if text.startswith(_CHANGED_BY_CAST):
        return "the cast changes the address space"
    if text.startswith(_COMPONENT):
        return "cannot assign to a component of a vector in constant memory"
    text = re.sub(
        r"__attribute__\(\(address_space\((\d)\)\)\)", lambda m: _NAMES.get(m[1], m[0]), text
    )
    return text.replace("emu_", "")
