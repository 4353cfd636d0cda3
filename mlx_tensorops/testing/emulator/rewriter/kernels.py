"""Kernels, their instantiations, and the attributes, none of which C++ knows."""

from __future__ import annotations

from mlx_tensorops.testing.emulator.rewriter.declarations import Declaration
from mlx_tensorops.testing.emulator.rewriter.signatures import (
    KernelSignature,
    attributes,
    parameters,
)
from mlx_tensorops.testing.emulator.rewriter.tokens import RewriteError, Source

# Entry points of stages and features that this emulator does not have.
_OTHER_STAGES = frozenset({"vertex", "fragment", "intersection", "object", "mesh", "visible"})


def head_attributes(source: Source, declaration: Declaration) -> dict[str, str]:
    """The attributes of the declaration itself, not those of its parameters."""
    found: dict[str, str] = {}
    for i in source.top_level(declaration.start, declaration.head_end):
        if source.text(i) == "[[":
            found.update(attributes(source, i))
    return found


def find_kernels(source: Source, found: list[Declaration]) -> list[KernelSignature]:
    """The signatures of the kernels; the word `kernel` is erased."""
    kernels = []
    for declaration in found:
        if declaration.parameters is None or _is_instantiation(source, declaration):
            continue
        marks = head_attributes(source, declaration)
        keyword = _keyword(source, declaration)
        if keyword is not None:
            source.erase(keyword, keyword + 1)
        stages = _OTHER_STAGES & marks.keys()
        if stages:
            stage = min(stages)
            message = f"[[{stage}]] functions are not supported, only kernels"
            raise RewriteError(message, source.place(declaration.specifiers))
        is_definition = source.text(declaration.head_end) == "{"
        if (keyword is not None or "kernel" in marks) and is_definition:
            kernels.append(_signature(source, declaration, marks))
    return kernels


def _keyword(source: Source, declaration: Declaration) -> int | None:
    words = source.top_level(declaration.specifiers, declaration.parameters or 0)
    return next((i for i in words if source.text(i) == "kernel"), None)


def _signature(source: Source, declaration: Declaration, marks: dict[str, str]) -> KernelSignature:
    opening = declaration.parameters
    assert opening is not None
    name = source.text(source.previous(opening))
    limit = None
    if "max_total_threads_per_threadgroup" in marks:
        limit = f"emu_limit_{opening}"
        _keep_limit(source, declaration, limit, marks["max_total_threads_per_threadgroup"])
    host_name = marks.get("host_name")
    return KernelSignature(
        name="::".join((*declaration.scope, name)),
        place=source.place(opening),
        is_template=declaration.is_template,
        parameters=parameters(source, opening),
        host_name=host_name.strip('"') if host_name else None,
        limit="::".join((*declaration.scope, limit)) if limit else None,
    )


def _keep_limit(source: Source, declaration: Declaration, name: str, value: str) -> None:
    """The attribute's expression, which may depend on template parameters, as a variable."""
    clause = source.spell(declaration.start, declaration.specifiers)
    source.insert_after(declaration.end - 1, f" {clause} constexpr int {name} = {value};")


def _is_instantiation(source: Source, declaration: Declaration) -> bool:
    return not declaration.is_template and source.text(declaration.start) == "template"


def take_instantiations(source: Source, found: list[Declaration]) -> dict[str, str]:
    """Erase `template [[host_name("x")]] [[kernel]] ... f<...>...;`, return {"x": "f<...>"}.

    Both ways to write them are known: `decltype(f<T>) f<T>;` and `void f<T>(parameters);`.
    """
    instances: dict[str, str] = {}
    for declaration in found:
        if not _is_instantiation(source, declaration):
            continue
        marks = head_attributes(source, declaration)
        if "host_name" not in marks:
            continue
        host_name = marks["host_name"].strip('"')
        if host_name in instances:
            message = f'host_name "{host_name}" is given twice'
            raise RewriteError(message, source.place(declaration.start))
        instances[host_name] = _instance(source, declaration)
        source.erase(declaration.start, declaration.end)
    return instances


def _instance(source: Source, declaration: Declaration) -> str:
    """The `f<...>` of an explicit instantiation, qualified by the namespaces around it."""
    words = list(source.top_level(declaration.start, declaration.head_end))
    end = declaration.head_end if declaration.parameters is None else declaration.parameters
    decltype = next((i for i in words if source.text(i) == "decltype"), None)
    if decltype is not None:
        opening = source.next(decltype)
        name = source.spell(opening + 1, source.partner[opening])
    else:
        angle = next((i for i in words if source.text(i) == "<"), None)
        if angle is None:
            message = "cannot read this explicit instantiation"
            raise RewriteError(message, source.place(declaration.start))
        name = source.spell(source.previous(angle), end)
    return "::".join((*declaration.scope, name))


def erase_attributes(source: Source) -> None:
    """Erase what is left of `[[...]]` outside declarations that other passes erased."""
    for i, token in enumerate(source.tokens):
        if token.text == "[[" and i in source.partner:
            source.erase(i, source.partner[i] + 1)
