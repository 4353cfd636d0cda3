"""The Metal source around the body of a custom kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import mlx.core as mx

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator.rewriter.signatures import SCALAR_INPUTS, VECTOR_INPUTS

Template: TypeAlias = Sequence[tuple[str, "bool | int | mx.Dtype"]]

# MLX passes inputs of fewer elements in the constant address space.
_MOST_CONSTANT_ELEMENTS = 8
# MLX declares parameters of these names, too. Metal has them for kernels with stage-in data only.
_STAGE_IN = re.compile(r"\bgrid_(?:origin|size)\b")
_DESCRIPTIONS = {
    "shape": "const constant int* ",
    "strides": "const constant int64_t* ",
    "ndim": "const constant int& ",
}
_TYPES = {
    mx.bool_: "bool",
    mx.uint8: "uint8_t",
    mx.uint16: "uint16_t",
    mx.uint32: "uint32_t",
    mx.uint64: "uint64_t",
    mx.int8: "int8_t",
    mx.int16: "int16_t",
    mx.int32: "int32_t",
    mx.int64: "int64_t",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.float32: "float",
    mx.complex64: "complex64_t",
}


class Signature:
    """What is known of a kernel before it is called."""

    def __init__(
        self,
        name: str,
        header: str,
        source: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        atomic_outputs: bool,
    ) -> None:
        stage_in = _STAGE_IN.search(source)
        if stage_in:
            raise ValueError(
                "[metal_kernel] source must not name grid_origin or grid_size, inputs that the "
                f"emulator does not have, got {stage_in[0]}."
            )
        self.name = name
        self.function = f"custom_kernel_{name}"
        self.header = header
        self.source = source
        self.output_names = tuple(output_names)
        self.atomic_outputs = atomic_outputs
        # What a source asks for it gets by naming it, anywhere.
        self.inputs = [
            (name, tuple(what for what in _DESCRIPTIONS if f"{name}_{what}" in source))
            for name in input_names
        ]
        kinds = {**dict.fromkeys(VECTOR_INPUTS, "uint3"), **dict.fromkeys(SCALAR_INPUTS, "uint")}
        self.positions = [
            f"{kinds[name]} {name} [[{name}]]" for name in sorted(kinds) if name in source
        ]


@dataclass(frozen=True)
class Function:
    """A kernel as it is called.

    Attributes:
        name: of the kernel.
        text: the whole source.
        instance: what of it to instantiate.
        described: for each input, which of its shape, strides and ndim follow it.
    """

    name: str
    text: str
    instance: str
    described: tuple[tuple[str, ...], ...]

    def pipeline(self, trace: bool, check: bool) -> emulator.Kernel:
        """The kernel, compiled."""
        return _pipeline(self.text, self.name, self.instance, trace, check)


def function(
    signature: Signature,
    inputs: Sequence[mx.array],
    output_dtypes: Sequence[mx.Dtype],
    template: Template,
) -> Function:
    """Write the function for these inputs."""
    parameters: list[str] = []
    described = []

    def add(declaration: str) -> None:
        parameters.append(f"{declaration} [[buffer({len(parameters)})]]")

    for (name, asked), array in zip(signature.inputs, inputs, strict=True):
        space = "constant" if array.size < _MOST_CONSTANT_ELEMENTS else "device"
        add(f"const {space} {_type_name(array.dtype)}{'*' if array.ndim else '&'} {name}")
        # A scalar has none.
        described.append(asked if array.ndim else ())
        for what in described[-1]:
            add(f"{_DESCRIPTIONS[what]}{name}_{what}")
    for name, dtype in zip(signature.output_names, output_dtypes, strict=True):
        kind = f"atomic<{_type_name(dtype)}>" if signature.atomic_outputs else _type_name(dtype)
        add(f"device {kind}* {name}")
    clause = ", ".join(f"{_kind(value)} {name}" for name, value in template)
    lines = [
        '#include "mlx/backend/metal/kernels/utils.h"',
        signature.header,
        *([f"template <{clause}>"] if clause else []),
        f"[[kernel]] void {signature.function}(",
        "    " + ",\n    ".join([*parameters, *signature.positions]) + ") {",
        f'#line 1 "{signature.name}.metal"',
        signature.source,
        "}\n",
    ]
    arguments = ", ".join(_argument(value) for _, value in template)
    instance = f"{signature.function}<{arguments}>" if template else signature.function
    return Function(signature.name, "\n".join(lines), instance, tuple(described))


def _type_name(dtype: mx.Dtype) -> str:
    if dtype not in _TYPES:
        raise ValueError(f"[metal_kernel] arrays must be of a type that Metal has, got {dtype}.")
    return _TYPES[dtype]


def _kind(value: bool | int | mx.Dtype) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and -(2**31) <= value < 2**31:
        return "int"
    if isinstance(value, mx.Dtype):
        return "typename"
    raise ValueError(
        f"[metal_kernel] template arguments must be a dtype, a bool or an int of 32 bits, "
        f"got {value!r}."
    )


def _argument(value: bool | int | mx.Dtype) -> str:
    if isinstance(value, mx.Dtype):
        return _type_name(value)
    return str(value).lower()


@lru_cache(maxsize=1024)
def _pipeline(text: str, name: str, instance: str, trace: bool, check: bool) -> emulator.Kernel:
    include_dirs = [Path(mx.__file__).parent / "include"]
    instantiations = {name: instance}
    file = f"{name}.metal"
    if check:
        complaints = emulator.check(
            text, include_dirs=include_dirs, instantiations=instantiations, name=file
        )
        if complaints:
            raise emulator.CompileError("\n".join(complaints))
    library = emulator.compile(
        text, include_dirs=include_dirs, instantiations=instantiations, trace=trace, name=file
    )
    return library.pipeline(name)
