"""Function parameters and their Metal attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlx_tensorops.testing.emulator.rewriter.tokens import WORD, RewriteError, Source, join

ADDRESS_SPACES = frozenset({"device", "constant", "threadgroup", "thread"})
# How the address spaces that differ are written where they are kept for the compiler to compare.
KEPT_SPACES = {
    "device": "emu_device",
    "constant": "emu_constant",
    "threadgroup": "emu_threadgroup",
}
# Address spaces of stages that compute kernels do not have.
FOREIGN_SPACES = frozenset({"threadgroup_imageblock", "ray_data", "object_data"})

# Attributes that hand a position or a size to a kernel: a vector, of which a scalar parameter gets
# the x, or a scalar. Metal Shading Language specification 4, table 5.8.
VECTOR_INPUTS = frozenset(
    {
        "dispatch_threads_per_threadgroup",
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "threadgroup_position_in_grid",
        "threadgroups_per_grid",
        "threads_per_grid",
        "threads_per_threadgroup",
    }
)
SCALAR_INPUTS = frozenset(
    {
        "dispatch_quadgroups_per_threadgroup",
        "dispatch_simdgroups_per_threadgroup",
        "quadgroup_index_in_threadgroup",
        "quadgroups_per_threadgroup",
        "simdgroup_index_in_threadgroup",
        "simdgroups_per_threadgroup",
        "thread_execution_width",
        "thread_index_in_quadgroup",
        "thread_index_in_simdgroup",
        "thread_index_in_threadgroup",
        "threads_per_simdgroup",
    }
)
_BUILTIN_WORDS = frozenset(
    {"bool", "char", "short", "int", "long", "unsigned", "signed", "float", "double", "void"}
    | {"const", "volatile", "half", "bfloat", "uint", "ushort", "uchar", "ulong", "auto"}
)


@dataclass(slots=True)
class Parameter:
    """One parameter: its declaration without attributes, and the attributes with arguments."""

    name: str
    type: str
    declaration: str
    attributes: dict[str, str]
    is_pointer: bool
    is_reference: bool
    is_tensor: bool
    is_const: bool
    spaces: frozenset[str]
    place: str

    @property
    def input(self) -> str | None:
        """The name of the position or size that it receives, None for an argument."""
        inputs = (VECTOR_INPUTS | SCALAR_INPUTS) & self.attributes.keys()
        return next(iter(inputs), None)

    def attribute(self, name: str) -> int | None:
        """The number in [[name(number)]], if the attribute is there."""
        if name not in self.attributes:
            return None
        text = self.attributes[name]
        if not text.isdecimal():
            raise RewriteError(f"[[{name}({text})]] must have a number", self.place)
        return int(text)


@dataclass(slots=True)
class KernelSignature:
    """A function marked as a kernel; the name is qualified by its namespaces."""

    name: str
    place: str
    is_template: bool
    parameters: list[Parameter]
    host_name: str | None
    limit: str | None  # the variable with its max_total_threads_per_threadgroup


def attributes(source: Source, opening: int) -> Iterator[tuple[str, str]]:
    """The (name, arguments) pairs of the [[...]] that opens at the position."""
    for start, end in split(source, opening + 1, source.partner[opening]):
        name = next(source.significant(start, end), end)
        while source.text(source.next(name)) == "::":
            name = source.next(source.next(name))
        arguments = source.next(name)
        text = ""
        if arguments < end and source.text(arguments) == "(":
            text = source.spell(arguments + 1, source.partner[arguments])
        yield source.text(name), text


def split(source: Source, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The comma-separated parts of start..end (exclusive), empty ones left out."""
    part, angle_end = start, start
    for i in source.top_level(start, end):
        if source.text(i) == "<" and i >= angle_end:
            angle_end = source.angle_end(i, end) or i
        if source.text(i) == "," and i >= angle_end:
            yield part, i
            part = i + 1
    if any(True for _ in source.significant(part, end)):
        yield part, end


def parameters(source: Source, opening: int) -> list[Parameter]:
    """The parameters of the list that opens at the position."""
    parts = split(source, opening + 1, source.partner[opening])
    return [_parameter(source, start, end) for start, end in parts]


def name_of_declarator(source: Source, start: int, end: int) -> int | None:
    """The token of the declared name in one parameter or variable, None if it has no name."""
    name, count = None, 0
    for i in source.top_level(start, end):
        if source.text(i) in ("=", "[", "[["):
            break
        count += 1
        name = i if source.kind(i) == WORD else None
    # `int` or `const float` alone is a type without a name.
    if name is None or count < 2 or source.text(name) in _BUILTIN_WORDS | ADDRESS_SPACES:
        return None
    return None if source.text(source.previous(name)) in ("::", "typename") else name


def _is_tensor(texts: Sequence[str]) -> bool:
    """Whether the words are those of a tensor by value: tensor<...> name."""
    words = [text for text in texts if text not in ("const", "metal", "::", "typename")]
    return bool(words) and words[0] == "tensor" and words[-1] not in "*&"


def _parameter(source: Source, start: int, end: int) -> Parameter:
    found: dict[str, str] = {}
    words: list[int] = []
    has_brackets = False
    for i in source.top_level(start, end):
        if source.text(i) == "[[":
            found.update(attributes(source, i))
        else:
            words.append(i)
            has_brackets |= source.text(i) == "["
    texts = [source.text(i) for i in words]
    pointee = texts[: next((k for k, text in enumerate(texts) if text in "*&"), None)]
    name = name_of_declarator(source, start, end)
    erased = ADDRESS_SPACES | {"const", "volatile"}
    type_words = [source.text(i) for i in words if i != name and source.text(i) not in erased]
    spaces = frozenset(ADDRESS_SPACES.intersection(texts))
    return Parameter(
        name=source.text(name) if name is not None else "",
        type=join(type_words),
        declaration=source.spell(start, end),
        attributes=found,
        is_pointer="*" in texts or (has_brackets and "&" not in texts),
        is_reference="&" in texts,
        is_tensor=_is_tensor(texts),
        is_const="const" in pointee or "constant" in spaces,
        spaces=spaces,
        place=source.place(next(source.significant(start, end))),
    )
