"""`mx.fast.metal_kernel` for Linux: the same calls, executed by the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator.rewriter.signatures import SCALAR_INPUTS, VECTOR_INPUTS

# MLX passes inputs of fewer elements in the constant address space.
_MOST_CONSTANT_ELEMENTS = 8
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


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: Mapping[str, Any] | None = None,
    *,
    trace: bool = False,
    policies: emulator.Policies | None = None,
) -> Callable[..., list[mx.array]]:
    """A Metal kernel from the body of its function, as `mx.fast.metal_kernel` makes one.

    Results are computed when the kernel is called, so it cannot be called while MLX traces a
    function for `mx.compile` or a gradient. Outputs that the kernel does not write are NaN.

    Args:
        name: name for the kernel.
        input_names: the names of the inputs in the source.
        output_names: the names of the outputs in the source.
        source: the body of the function; its signature is generated.
        header: source code before the function.
        ensure_row_contiguous: has no effect, inputs are always made row contiguous.
        atomic_outputs: whether outputs are `device atomic<T>*`.
        compile_options: have no effect, mathematics is always that of "safe".
        trace: watch every access to memory, see `emulator.compile`.
        policies: how to decide what Metal leaves open.

    Returns:
        A function with the keyword arguments of MLX's: inputs, template, grid, threadgroup,
        output_shapes, output_dtypes, init_value, verbose, stream.

    Raises:
        ValueError: there are no outputs.
    """
    if not output_names:
        raise ValueError("[metal_kernel] output_names must name at least one output, got [].")

    def kernel(
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: object = None,
    ) -> list[mx.array]:
        _check_count("inputs", inputs, input_names)
        _check_count("output_shapes", output_shapes, output_names)
        _check_count("output_dtypes", output_dtypes, output_names)
        arrays = [value if isinstance(value, mx.array) else mx.array(value) for value in inputs]
        parameters, buffers = _inputs(source, input_names, arrays)
        outputs = [
            _output(shape, dtype, init_value)
            for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]
        parameters += _output_parameters(output_names, output_dtypes, atomic_outputs)
        text = _function(name, header, source, parameters, template or ())
        if verbose:
            print(text)
        library = _library(text, name, _instance(name, template or ()), trace)
        library.pipeline(name).launch(
            dict(enumerate([*buffers, *outputs])),
            threads=grid,
            # MLX does so, too: no threadgroup is larger than the grid.
            threadgroup=[min(pair) for pair in zip(threadgroup, grid, strict=True)],
            policies=policies,
        )
        return [
            _to_mlx(array, shape, dtype)
            for array, shape, dtype in zip(outputs, output_shapes, output_dtypes, strict=True)
        ]

    return kernel


def _check_count(what: str, values: Sequence[Any], names: Sequence[str]) -> None:
    if len(values) != len(names):
        raise ValueError(
            f"[metal_kernel] {what} must have {len(names)} elements ({', '.join(names)}), "
            f"got {len(values)}."
        )


def _type_name(dtype: mx.Dtype) -> str:
    if dtype not in _TYPES:
        raise ValueError(f"[metal_kernel] arrays must be of a type that Metal has, got {dtype}.")
    return _TYPES[dtype]


def _inputs(
    source: str, names: Sequence[str], arrays: Sequence[mx.array]
) -> tuple[list[str], list[Any]]:
    """Parameters and buffers of the inputs, with the shapes and strides that the source uses."""
    parameters: list[str] = []
    buffers: list[Any] = []

    def add(parameter: str, buffer: Any) -> None:
        parameters.append(f"{parameter} [[buffer({len(buffers)})]]")
        buffers.append(buffer)

    for name, array in zip(names, arrays, strict=True):
        space = "constant" if array.size < _MOST_CONSTANT_ELEMENTS else "device"
        kind = f"{_type_name(array.dtype)}{'*' if array.ndim else '&'}"
        add(f"const {space} {kind} {name}", _to_numpy(array))
        if not array.ndim:
            continue
        strides = [int(np.prod(array.shape[axis + 1 :])) for axis in range(array.ndim)]
        if f"{name}_shape" in source:
            add(f"const constant int* {name}_shape", np.array(array.shape, np.int32))
        if f"{name}_strides" in source:
            add(f"const constant int64_t* {name}_strides", np.array(strides, np.int64))
        if f"{name}_ndim" in source:
            add(f"const constant int& {name}_ndim", array.ndim)
    return parameters, buffers


def _output_parameters(names: Sequence[str], dtypes: Sequence[mx.Dtype], atomic: bool) -> list[str]:
    kinds = [f"atomic<{_type_name(d)}>" if atomic else _type_name(d) for d in dtypes]
    return [f"device {kind}* {name}" for kind, name in zip(kinds, names, strict=True)]


def _function(
    name: str,
    header: str,
    source: str,
    parameters: Sequence[str],
    template: Sequence[tuple[str, Any]],
) -> str:
    inputs = {**dict.fromkeys(VECTOR_INPUTS, "uint3"), **dict.fromkeys(SCALAR_INPUTS, "uint")}
    positions = [f"{inputs[i]} {i} [[{i}]]" for i in sorted(inputs) if i in source]
    clause = ", ".join(f"{_template_kind(value)} {key}" for key, value in template)
    signature = ",\n    ".join([*parameters, *positions])
    return (
        f'#include "mlx/backend/metal/kernels/utils.h"\n{header}\n'
        f"{f'template <{clause}>' if clause else ''}\n"
        f"[[kernel]] void custom_kernel_{name}(\n    {signature}) {{\n"
        f'#line 1 "{name}.metal"\n{source}\n}}\n'
    )


def _template_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "typename"


def _instance(name: str, template: Sequence[tuple[str, Any]]) -> str:
    def argument(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return str(value) if isinstance(value, int) else _type_name(value)

    arguments = ", ".join(argument(value) for _, value in template)
    return f"custom_kernel_{name}<{arguments}>" if template else f"custom_kernel_{name}"


@lru_cache(maxsize=256)
def _library(text: str, name: str, instance: str, trace: bool) -> emulator.Library:
    include = Path(mx.__file__).parent / "include"
    return emulator.compile(
        text,
        include_dirs=[include],
        instantiations={name: instance},
        trace=trace,
        name=f"{name}.metal",
    )


def _to_numpy(array: mx.array) -> np.ndarray[Any, Any]:
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 and array.ndim else array
    if bits.dtype == mx.bfloat16:  # a scalar has no view
        bits = array.reshape(1).view(mx.uint16)
    copied: np.ndarray[Any, Any] = np.array(bits, order="C", ndmin=1)
    return copied


def _output(
    shape: Sequence[int], dtype: mx.Dtype, init_value: float | None
) -> np.ndarray[Any, Any]:
    if init_value is not None:
        return _to_numpy(mx.full(tuple(shape), init_value, dtype))
    empty: np.ndarray[Any, Any] = _to_numpy(mx.zeros(tuple(shape), dtype))
    empty.view(np.uint8)[...] = 0xFF
    return empty


def _to_mlx(array: np.ndarray[Any, Any], shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    result = mx.array(array)
    return (result.view(mx.bfloat16) if dtype == mx.bfloat16 else result).reshape(shape)
