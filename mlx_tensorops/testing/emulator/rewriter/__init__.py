"""Metal Shading Language to C++: what the compiler cannot be taught by headers alone.

The input is preprocessed source. `rewrite` takes away attributes and address spaces, gives function
constants and threadgroup variables to the runtime, and appends one adapter an instance of a kernel.
Lines stay where they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mlx_tensorops.testing.emulator.rewriter.adapters import (
    Argument,
    Instance,
    adapter_code,
    find_signature,
    make_instance,
)
from mlx_tensorops.testing.emulator.rewriter.casts import CAST_DEFINITION, check_casts
from mlx_tensorops.testing.emulator.rewriter.compound import rewrite_compound_assignments
from mlx_tensorops.testing.emulator.rewriter.constants import FunctionConstant, rewrite_constants
from mlx_tensorops.testing.emulator.rewriter.declarations import declarations
from mlx_tensorops.testing.emulator.rewriter.kernels import (
    erase_attributes,
    find_kernels,
    take_instantiations,
)
from mlx_tensorops.testing.emulator.rewriter.literals import rewrite_literals
from mlx_tensorops.testing.emulator.rewriter.memory import rewrite_threadgroup_variables
from mlx_tensorops.testing.emulator.rewriter.signatures import KEPT_SPACES
from mlx_tensorops.testing.emulator.rewriter.spaces import drop_duplicates, erase_address_spaces
from mlx_tensorops.testing.emulator.rewriter.subscripts import rewrite_subscripts
from mlx_tensorops.testing.emulator.rewriter.tokens import RewriteError, Source
from mlx_tensorops.testing.emulator.rewriter.uses import Uses

__all__ = [
    "Argument",
    "FunctionConstant",
    "Instance",
    "RewriteError",
    "Rewritten",
    "rewrite",
    "rewrite_with_spaces",
]

_WORD = re.compile(r"[A-Za-z_]\w*")
_ADAPTERS_MARKER = '\n# 1 "<kernel adapters>"\n'


@dataclass(frozen=True, slots=True)
class Rewritten:
    """C++ source, and what it contains."""

    text: str
    instances: tuple[Instance, ...]
    constants: tuple[FunctionConstant, ...]
    warnings: tuple[str, ...]


# Numbers that clang compares and does nothing else with.
_KEPT_SPACES = "".join(
    f"#define {name} {'const ' * (space == 'constant')}__attribute__((address_space({number})))\n"
    for number, (space, name) in enumerate(KEPT_SPACES.items(), 1)
)


def rewrite_with_spaces(preprocessed: str, instantiations: Mapping[str, str]) -> str:
    """As rewrite, but address spaces stay: for the compiler to compare, not to run."""
    source = Source(preprocessed)
    rewrite_subscripts(source)
    rewrite_compound_assignments(source)
    rewrite_literals(source)
    found = declarations(source)
    wanted = {**take_instantiations(source, found), **instantiations}
    kernels = find_kernels(source, found)
    rewrite_constants(source, found)
    rewrite_threadgroup_variables(source, KEPT_SPACES["threadgroup"])
    erase_attributes(source)
    check_casts(source)
    erase_address_spaces(source, keep=True)
    drop_duplicates(source, found)
    pieces = [_KEPT_SPACES, CAST_DEFINITION, source.output(), _ADAPTERS_MARKER]
    for number, function in enumerate(wanted.values()):
        find_signature(kernels, function)
        pieces.append(f"static const auto emu_instance_{number} = &{function};\n")
    return "".join(pieces)


def rewrite(preprocessed: str, instantiations: Mapping[str, str] | None = None) -> Rewritten:
    """Rewrite a translation unit.

    Args:
        preprocessed: the output of the preprocessor, with line markers.
        instantiations: functions to make launchable besides those that the source instantiates:
            ``{"host_name": "function<arguments>"}``.

    Returns:
        The C++ text and its kernels. A kernel that is no template is launchable by its own name
        (or its [[host_name]]).

    Raises:
        RewriteError: the source uses what the emulator does not have, or cannot be read.
    """
    source = Source(preprocessed)
    rewrite_subscripts(source)
    rewrite_compound_assignments(source)
    rewrite_literals(source)
    found = declarations(source)
    uses = Uses(source, found)
    wanted = take_instantiations(source, found)
    kernels = find_kernels(source, found)
    wanted |= {
        kernel.host_name or kernel.name.split("::")[-1]: kernel.name
        for kernel in kernels
        if not kernel.is_template
    }
    wanted |= instantiations or {}
    constants = rewrite_constants(source, found)
    rewrite_threadgroup_variables(source)
    erase_attributes(source)
    erase_address_spaces(source)
    drop_duplicates(source, found)
    by_name = {constant.name.split("::")[-1]: constant.index for constant in constants}
    instances, pieces = [], [source.output(), _ADAPTERS_MARKER]
    for number, (host_name, function) in enumerate(wanted.items()):
        kernel = find_signature(kernels, function)
        needed = uses.needed(_WORD.findall(function), by_name)
        instances.append(make_instance(host_name, function, kernel, needed))
        pieces.append(adapter_code(number, instances[-1], kernel))
    return Rewritten("".join(pieces), tuple(instances), tuple(constants), tuple(source.warnings))
