"""The functions through which the runtime calls kernels: one an instance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlx_tensorops.testing.emulator.rewriter.signatures import (
    SCALAR_INPUTS,
    VECTOR_INPUTS,
    KernelSignature,
    Parameter,
)
from mlx_tensorops.testing.emulator.rewriter.tokens import RewriteError

N_BUFFERS = 31  # Metal feature set tables: entries of the buffer argument table of a function
_VECTOR = re.compile(r"(?:metal::)?(?:uint|ushort)(?P<width>[23])?")


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter that a launch binds: a "buffer", "tensor" or "threadgroup" memory."""

    kind: str
    index: int
    name: str
    type: str
    writable: bool
    constant: bool
    optional: bool


@dataclass(frozen=True, slots=True)
class Instance:
    """One kernel that can be launched."""

    host_name: str
    function: str
    arguments: tuple[Argument, ...]
    needed_constants: tuple[int, ...]


def find_signature(kernels: list[KernelSignature], function: str) -> KernelSignature:
    """The kernel that `function` (a name, maybe qualified, maybe with arguments) refers to."""
    name = re.sub(r"\s", "", function.split("<")[0]).removeprefix("::")
    exact = [kernel for kernel in kernels if kernel.name == name]
    found = exact or [kernel for kernel in kernels if f"::{kernel.name}".endswith(f"::{name}")]
    if not found:
        known = ", ".join(sorted({kernel.name for kernel in kernels})) or "none"
        raise RewriteError(f"there is no kernel {name}; the source has {known}")
    if len(found) > 1:
        places = ", ".join(kernel.place for kernel in found)
        raise RewriteError(f"kernel {name} is ambiguous: {places}")
    return found[0]


def arguments(kernel: KernelSignature) -> list[Argument | None]:
    """What a launch binds to each parameter, None for positions and sizes.

    Buffers without [[buffer(i)]] get the lowest free indices, in order (Metal specification,
    section 5.2.1).
    """
    taken = {p.attribute("buffer") for p in kernel.parameters} - {None}
    free = (index for index in range(N_BUFFERS + 1) if index not in taken)
    return [_argument(kernel, parameter, free) for parameter in kernel.parameters]


def _argument(
    kernel: KernelSignature, parameter: Parameter, free: Iterator[int]
) -> Argument | None:
    known = VECTOR_INPUTS | SCALAR_INPUTS | {"buffer", "threadgroup", "function_constant"}
    unknown = parameter.attributes.keys() - known - {"maybe_unused"}
    if unknown:
        message = f"kernel {kernel.name}: [[{min(unknown)}]] is not supported"
        raise RewriteError(message, parameter.place)
    if parameter.input:
        return None
    if not (parameter.is_pointer or parameter.is_reference or parameter.is_tensor):
        message = (
            f"kernel {kernel.name}: parameter {parameter.declaration} must be a pointer or a "
            "reference to a buffer, a tensor, or have an attribute that is known here"
        )
        raise RewriteError(message, parameter.place)
    in_threadgroup = "threadgroup" in parameter.spaces
    index = parameter.attribute("threadgroup" if in_threadgroup else "buffer")
    if index is None:
        index = 0 if in_threadgroup else next(free)
    if not in_threadgroup and index >= N_BUFFERS:
        message = f"kernel {kernel.name}: buffer index must be below {N_BUFFERS}, got {index}"
        raise RewriteError(message, parameter.place)
    return Argument(
        kind=_kind(parameter, in_threadgroup),
        index=index,
        name=parameter.name,
        type=parameter.type,
        writable=not parameter.is_const,
        constant="constant" in parameter.spaces,
        optional="function_constant" in parameter.attributes,
    )


def _kind(parameter: Parameter, in_threadgroup: bool) -> str:
    if in_threadgroup:
        return "threadgroup"
    return "tensor" if parameter.is_tensor else "buffer"


def make_instance(
    host_name: str, function: str, kernel: KernelSignature, needed_constants: tuple[int, ...]
) -> Instance:
    """Describe the kernel's instance for those who launch it."""
    bound = tuple(argument for argument in arguments(kernel) if argument)
    return Instance(host_name, function, bound, needed_constants)


def adapter_code(number: int, instance: Instance, kernel: KernelSignature) -> str:
    """The function that calls the instance with what the runtime bound, and its registration."""
    values = [
        _value(parameter, argument)
        for parameter, argument in zip(kernel.parameters, arguments(kernel), strict=True)
    ]
    return (
        f"static void emu_kernel_{number}(const emu::Binding* bindings) {{\n"
        f"  ::{kernel.name}{_template_arguments(instance)}({', '.join(values)});\n}}\n"
        f"static const emu::KReg emu_register_{number}"
        f"({json.dumps(instance.host_name)}, emu_kernel_{number}{_limit(instance, kernel)});\n"
    )


def _limit(instance: Instance, kernel: KernelSignature) -> str:
    if kernel.limit is None:
        return ""
    return f", ::{kernel.limit}{_template_arguments(instance)}"


def _template_arguments(instance: Instance) -> str:
    angle = instance.function.find("<")
    return instance.function[angle:] if angle >= 0 else ""


def _value(parameter: Parameter, argument: Argument | None) -> str:
    if argument is None:
        return _input(parameter)
    if argument.kind == "threadgroup":
        return f"emu::ArgThreadgroup{{{argument.index}}}"
    if argument.kind == "tensor":
        return f"emu::ArgTensor{{bindings[{argument.index}], {argument.index}}}"
    wrapper = "emu::ArgRef" if parameter.is_reference else "emu::ArgPtr"
    return f"{wrapper}{{bindings[{argument.index}]}}"


def _input(parameter: Parameter) -> str:
    name = parameter.input or ""
    shape = _VECTOR.fullmatch(parameter.type.replace(" ", ""))
    if shape is None or (name in SCALAR_INPUTS and shape["width"]):
        message = f"[[{name}]] {parameter.name} cannot be of type {parameter.type}"
        raise RewriteError(message, parameter.place)
    if name in SCALAR_INPUTS:
        return f"emu::input::{name}()"
    axes = range(int(shape["width"] or 1))
    return f"{parameter.type}({', '.join(f'emu::input::{name}({axis})' for axis in axes)})"
