"""The first step of a compilation: the source with everything that it includes.

In Metal the language's headers are modules: a macro that a kernel defines before it includes one
does not reach into it. Here they are text, so they are read before the kernel is, and what the
kernel includes is looked up afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mlx_tensorops.testing.emulator import toolchain
from mlx_tensorops.testing.emulator.errors import CompileError
from mlx_tensorops.testing.emulator.rewriter.tokens import own_runs

_STDLIB = ("metal_stdlib",)
_TENSOR = (*_STDLIB, "metal_tensor", "metal_cooperative_tensor")
_PRIMITIVES = (*_TENSOR, "MetalPerformancePrimitives/MetalPerformancePrimitives.h")
# What -dI makes of a directive.
_INCLUDE = re.compile(r"^#include (?:_next )?<(?P<name>[^>]*)> /\* clang -E -dI \*/$", re.M)
_ANY_INCLUDE = re.compile(
    r"^#\s*(?:include|include_next|import) [^\n]* /\* clang -E -dI \*/$", re.M
)


def preprocess(
    compiler: toolchain.Toolchain,
    source: str | Path,
    name: str,
    arguments: Sequence[str],
    last_header: str | None = None,
) -> str:
    """The preprocessed source.

    Args:
        compiler: the compiler.
        source: the text, or a path.
        name: what lines of a source that is text are attributed to.
        arguments: more for the compiler, Metal's headers as those of the system among them.
        last_header: a file to read after Metal's headers, before the source.

    Raises:
        CompileError: the source cannot be preprocessed.
    """
    text = source if isinstance(source, str) else source.read_text(errors="replace")
    expected = _needed(set(_names_in(text)))

    def run(headers: Sequence[str]) -> str:
        # By name, so that they are found among the system's headers.
        forced = [*headers, *filter(None, [last_header])]
        flags = [*arguments, *(word for header in forced for word in ("-include", header))]
        if isinstance(source, Path):
            return _run(compiler, [*flags, str(source)], None)
        return _run(compiler, [*flags, "-"], f'#line 1 "{name}"\n{source}')

    output = run(expected)
    needed = _needed(_included(output))
    if needed != expected:
        output = run(needed)
    # The directives have been carried out; their lines have to stay.
    return _ANY_INCLUDE.sub("", output)


def _names_in(text: str) -> list[str]:
    return re.findall(r"^\s*#\s*include\s*<([^>]*)>", text, re.M)


def _included(output: str) -> set[str]:
    """The names of what the source itself includes."""
    return {
        match["name"]
        for is_own, run in own_runs(output)
        if is_own
        for match in _INCLUDE.finditer(run)
    }


def _needed(names: set[str]) -> tuple[str, ...]:
    """The headers to read first where a source includes those with these names."""
    if any(name.startswith("MetalPerformancePrimitives/") for name in names):
        return _PRIMITIVES
    if names & set(_TENSOR) - set(_STDLIB):
        return _TENSOR
    return _STDLIB if any(name.startswith("metal_") for name in names) else ()


def _run(compiler: toolchain.Toolchain, arguments: Sequence[str], text: str | None) -> str:
    status, output, messages = compiler.run(["-E", "-dI", "-x", "c++", *arguments], text)
    if status:
        raise CompileError(first_error_first(messages))
    # zig reads its standard input through a file of a new name each time.
    return re.sub(r'^(# \d+ ")[^"\n]*-stdin\.cpp"', r'\1<source>"', output, flags=re.M)


_ERROR = re.compile(r"^(?P<place>[^\s:][^:]*:\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.*)", re.M)


def first_error_first(messages: str) -> str:
    """The compiler's messages, the first error first."""
    first = _ERROR.search(messages)
    text = messages.strip()
    return f"{first['place']}: {first['text']}\n{text}" if first else text
