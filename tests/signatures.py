"""Signatures of Python functions and of nanobind's, whose docstring begins with theirs."""

import inspect
from collections.abc import Callable


def positional_parameters(function: Callable) -> list[tuple[str, str, object]]:
    """(name, kind, default) of the parameters that a position may give."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = _parsed(function.__doc__ or "")
    return [
        (parameter.name, parameter.kind.name, parameter.default)
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    ]


def same_but_for_scales(ours: Callable, theirs: Callable) -> bool:
    """Whether positions mean the same; our scales may be left out, as some formats have none."""
    parameters = positional_parameters(ours)
    defaults = [default for name, _, default in parameters if name == "scales"]
    parameters = [
        (name, kind, inspect.Parameter.empty if name == "scales" else default)
        for name, kind, default in parameters
    ]
    return defaults == [None] and parameters == positional_parameters(theirs)


def _parsed(docstring: str) -> inspect.Signature:
    header = docstring.strip().splitlines()[0]
    scope: dict[str, Callable] = {}
    source = f"from __future__ import annotations\ndef {header}: ..."
    exec(source, scope)
    return inspect.signature(scope[header.partition("(")[0]])
