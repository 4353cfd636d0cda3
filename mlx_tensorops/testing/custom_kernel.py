"""`mx.fast.metal_kernel` for Linux: the same calls, executed by the emulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx

from mlx_tensorops import _ext
from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.custom_buffers import Input, Output
from mlx_tensorops.testing.custom_source import Signature, Template, function

_MATH_MODES = ("safe", "relaxed", "fast")
# maxTotalThreadsPerThreadgroup of every Apple GPU.
_MOST_THREADS = 1024

# How often each kernel was launched, by its name.
launches: Counter[str] = Counter()


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
    check: bool = False,
    trace: bool = False,
    policies: emulator.Policies | None = None,
) -> Callable[..., list[mx.array]]:
    """A Metal kernel from the body of its function, as `mx.fast.metal_kernel` makes one.

    Its outputs are arrays like all others: lazy, traced by `mx.compile`, and without a gradient,
    which `mx.custom_function` can give to the function that calls the kernel.

    A kernel that does not compile raises when it is called, one that does something wrong when its
    outputs are evaluated. Outputs that it does not write are NaN. It is given just the memory that
    the elements of its inputs span: what lies beyond belongs to somebody else.

    Args:
        name: name for the kernel.
        input_names: the names of the inputs in the source.
        output_names: the names of the outputs in the source.
        source: the body of the function; its signature is generated.
        header: source code before the function.
        ensure_row_contiguous: whether inputs are copied that are not row contiguous. If not, the
            source finds elements by `<input>_shape`, `<input>_strides` and `<input>_ndim`; inputs
            with negative strides are copied all the same.
        atomic_outputs: whether outputs are `device atomic<T>*`.
        compile_options: checked, without effect: the mathematics is that of "safe" in all modes.
        check: refuse what only Metal's own compiler would, see `emulator.check`; inputs of fewer
            than eight elements, for one, are in the constant address space.
        trace: watch every access to memory, see `emulator.compile`.
        policies: how to decide what Metal leaves open.

    Returns:
        A function with the keyword arguments of MLX's: inputs, output_shapes, output_dtypes, grid,
        threadgroup, template, init_value, verbose, stream. `mx.gpu` as the stream, the only device
        of MLX's kernels, means the default stream of the CPU.

    Raises:
        ValueError: there are no outputs, the name is none, the source names grid_size or
            grid_origin, or an option is unknown.
    """
    _check_kernel(name, output_names, compile_options)
    signature = Signature(name, header, source, input_names, output_names, atomic_outputs)

    def kernel(
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: Template | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[mx.array]:
        _check_count("inputs", inputs, input_names)
        _check_count("output_shapes", output_shapes, output_names)
        _check_count("output_dtypes", output_dtypes, output_names)
        _check_launch(grid, threadgroup)
        arrays = [_array(value) for value in inputs]
        generated = function(signature, arrays, output_dtypes, template or ())
        if verbose:
            print(f"Generated source code for `{name}`:\n```\n{generated.text}\n```")
        pipeline = generated.pipeline(trace, check)
        ins = [
            Input(array, names, ensure_row_contiguous)
            for array, names in zip(arrays, generated.described, strict=True)
        ]
        outs = [Output(dtype, init_value) for dtype in output_dtypes]
        # MLX does so, too: no threadgroup is larger than the grid.
        group = [min(pair) for pair in zip(threadgroup, grid, strict=True)]

        def run(given: Sequence[Any], memory: Sequence[memoryview]) -> None:
            buffers = [
                buffer
                for argument, operand in zip(ins, given, strict=True)
                for buffer in argument.buffers(*operand)
            ]
            buffers += [output.buffer(view) for output, view in zip(outs, memory, strict=True)]
            launches[name] += 1
            pipeline.launch(
                dict(enumerate(buffers)), threads=grid, threadgroup=group, policies=policies
            )

        shapes = [list(map(int, shape)) for shape in output_shapes]
        return _ext.callback(name, run, arrays, shapes, list(output_dtypes), _on_cpu(stream))

    return kernel


def _check_kernel(name: str, output_names: Sequence[str], options: Any) -> None:
    if not output_names:
        raise ValueError("[metal_kernel] output_names must name at least one output, got [].")
    # The function is called custom_kernel_<name>.
    if not f"_{name}".isidentifier():
        raise ValueError(f"[metal_kernel] name must be one for a function, got {name!r}.")
    if options is None:
        return
    if not isinstance(options, Mapping) or options.keys() - {"math_mode"}:
        raise ValueError(
            f"[metal_kernel] compile_options must be a dict with math_mode, got {options!r}."
        )
    if options.get("math_mode", "safe") not in _MATH_MODES:
        raise ValueError(
            f"[metal_kernel] math_mode must be one of {', '.join(_MATH_MODES)}, "
            f"got {options['math_mode']!r}."
        )


def _check_count(what: str, values: Sequence[Any], names: Sequence[str]) -> None:
    if len(values) != len(names):
        raise ValueError(
            f"[metal_kernel] {what} must have {len(names)} elements ({', '.join(names)}), "
            f"got {len(values)}."
        )


def _check_launch(grid: Sequence[int], threadgroup: Sequence[int]) -> None:
    for what, sizes in (("grid", grid), ("threadgroup", threadgroup)):
        if len(sizes) != 3 or min(sizes) < 1:
            raise ValueError(
                f"[metal_kernel] {what} must be three sizes of at least 1, got {tuple(sizes)}."
            )
    n_threads = threadgroup[0] * threadgroup[1] * threadgroup[2]
    if n_threads > _MOST_THREADS:
        raise ValueError(
            f"[metal_kernel] threadgroup must have at most {_MOST_THREADS} threads, "
            f"got {tuple(threadgroup)}."
        )


def _array(value: Any) -> mx.array:
    if isinstance(value, mx.array):
        return value
    if isinstance(value, Sequence):
        raise TypeError(f"[metal_kernel] inputs must be arrays or numbers, got {value!r}.")
    return mx.array(value)


def _on_cpu(stream: Any) -> Any:
    is_gpu = isinstance(stream, mx.Device | mx.DeviceType) and stream == mx.DeviceType.gpu
    return mx.cpu if is_gpu else stream
