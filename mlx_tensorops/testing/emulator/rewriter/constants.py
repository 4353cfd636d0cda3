"""Variables in the constant address space: function constants, and what is computed from them.

A function constant becomes a variable that the runtime sets before a launch. Constants whose
initializer needs one are evaluated again before each launch. All others become `const`: Metal
requires a constant initializer, so they can be array bounds and template arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlx_tensorops.testing.emulator.rewriter.declarations import Declaration
from mlx_tensorops.testing.emulator.rewriter.kernels import head_attributes
from mlx_tensorops.testing.emulator.rewriter.signatures import ADDRESS_SPACES, name_of_declarator
from mlx_tensorops.testing.emulator.rewriter.tokens import RewriteError, Source, join

QUERY = "is_function_constant_defined"


@dataclass(slots=True)
class FunctionConstant:
    """One `constant T name [[function_constant(index)]];`."""

    index: int
    name: str
    type: str
    place: str


def rewrite_constants(source: Source, found: list[Declaration]) -> list[FunctionConstant]:
    """Rewrite all constants of namespaces and classes; return the function constants."""
    constants: list[FunctionConstant] = []
    variable: set[str] = set()
    for declaration in found:
        if declaration.is_class or declaration.parameters is not None:
            continue
        marks = head_attributes(source, declaration)
        if "function_constant" in marks:
            constant = _function_constant(source, declaration, marks["function_constant"])
            constants.append(constant)
            variable.add(constant.name)
        elif _has_word(source, declaration, "constant"):
            _other_constant(source, declaration, variable)
    _rewrite_queries(source)
    return constants


def _has_word(source: Source, declaration: Declaration, word: str) -> bool:
    words = source.top_level(declaration.specifiers, declaration.head_end)
    return any(source.text(i) == word for i in words)


def _name(source: Source, declaration: Declaration) -> int:
    name = name_of_declarator(source, declaration.specifiers, declaration.head_end)
    if name is None:
        message = "cannot read the declaration of this constant"
        raise RewriteError(message, source.place(declaration.start))
    return name


def _make_variable(source: Source, declaration: Declaration, name: int) -> str:
    """Erase what makes it constant; return its type."""
    erased = ADDRESS_SPACES | {"const", "constexpr"}
    type_words = []
    for i in source.top_level(declaration.specifiers, name):
        if source.text(i) in erased:
            source.erase(i, i + 1)
        elif source.text(i) not in ("static", "[["):
            type_words.append(source.text(i))
    return join(type_words)


def _function_constant(
    source: Source, declaration: Declaration, index_text: str
) -> FunctionConstant:
    place = source.place(declaration.start)
    if not index_text.isdecimal():
        raise RewriteError(f"[[function_constant({index_text})]] must have a number", place)
    name_at = _name(source, declaration)
    name, index = source.text(name_at), int(index_text)
    type_text = _make_variable(source, declaration, name_at)
    source.insert_after(
        declaration.end - 1, f' static emu::FcReg emu_constant_{name}({index}, &{name}, "{name}");'
    )
    return FunctionConstant(index, "::".join((*declaration.scope, name)), type_text, place)


def _other_constant(source: Source, declaration: Declaration, variable: set[str]) -> None:
    words = list(source.top_level(declaration.specifiers, declaration.head_end))
    equals = next((i for i in words if source.text(i) == "="), None)
    if equals is not None and not declaration.in_class:
        initializer = source.significant(equals, declaration.end)
        if any(source.text(i) in variable | {QUERY} for i in initializer):
            _derived_constant(source, declaration, equals)
            variable.add(source.text(_name(source, declaration)))
            return
    head = [i for i in words if equals is None or i < equals]
    # A pointer to constants is no constant, and `const` is not written twice.
    keyword = next((i for i in head if source.text(i) == "constant"), None)
    kept = any(source.text(i) in ("*", "&", "const", "constexpr") for i in head)
    if keyword is not None and not kept:
        source.replace(keyword, "const")


def _derived_constant(source: Source, declaration: Declaration, equals: int) -> None:
    name_at = _name(source, declaration)
    _make_variable(source, declaration, name_at)
    _rewrite_queries(source, equals, declaration.end)
    name, value = source.text(name_at), source.spell(equals + 1, declaration.end - 1)
    source.insert_after(
        declaration.end - 1,
        f" static emu::DerivedReg emu_derived_{name}([] {{ {name} = {value}; }});",
    )


def _rewrite_queries(source: Source, start: int = 0, end: int | None = None) -> None:
    """Ask the runtime whether a function constant has a value."""
    for i in source.significant(start, len(source) if end is None else end):
        opening = source.next(i)
        if source.text(i) == QUERY and source.text(opening) == "(":
            source.replace(i, "emu::fc_defined")
            source.replace(opening, "(&")
