"""Compiled libraries and their kernels, as Python sees them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlx_tensorops.testing.emulator import building, lines, native
from mlx_tensorops.testing.emulator.errors import EmulatorError, Fault
from mlx_tensorops.testing.emulator.findings import Finding
from mlx_tensorops.testing.emulator.policies import EmuPolicies, Policies
from mlx_tensorops.testing.emulator.rewriter import Argument, Instance
from mlx_tensorops.testing.emulator.roofline import Chip, Estimate
from mlx_tensorops.testing.emulator.tensors import Tensor
from mlx_tensorops.testing.emulator.values import pack

_OWN_SOURCES = (str(building.SOURCES),)


@dataclass(frozen=True)
class Launch:
    """What a launch cost and found.

    Attributes:
        counters: costs by name, such as "matmul_flops" and "threadgroup_barriers".
        buffer_bytes: in a traced library, bytes (read, written) by buffer index: of all threads,
            as if there were no cache. An atomic operation counts as a store.
        buffer_sizes: the size in bytes of each buffer that was bound, by index.
        constant_buffers: those of them in the constant address space.
        is_traced: whether bytes were counted.
        findings: what was noticed, in order.
    """

    counters: Mapping[str, int]
    buffer_bytes: Mapping[int, tuple[int, int]]
    buffer_sizes: Mapping[int, int]
    constant_buffers: frozenset[int]
    is_traced: bool
    findings: tuple[Finding, ...]

    def estimate(self, chip: str | Chip) -> Estimate:
        """The least time that a GPU of this kind would need: an estimate from public figures.

        Nothing was measured on a Mac, and most kernels take longer: see `Estimate`.

        Args:
            chip: a name, such as "M4 Max", or a Chip.

        Raises:
            ValueError: the chip is not known, or the library was compiled without trace=True, so
                that bytes were not counted.
        """
        if not self.is_traced:
            raise ValueError("[estimate] the library must be compiled with trace=True.")
        bytes_by_buffer = {
            index: pair
            for index, pair in self.buffer_bytes.items()
            if index not in self.constant_buffers
        }
        return Estimate.of(self.counters, bytes_by_buffer, self.buffer_sizes, chip)


def compile(
    source: str | os.PathLike[str],
    *,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    defines: Mapping[str, object] | None = None,
    instantiations: Mapping[str, str] | None = None,
    metal_version: int = 400,
    trace: bool = False,
    values: bool = False,
    name: str = "kernel.metal",
) -> Library:
    """Compile Metal source for this computer.

    Args:
        source: the text, or the path of a .metal file as a Path.
        include_dirs: folders for #include.
        defines: macros, as -D gives them to a compiler.
        instantiations: template kernels to instantiate besides those that the source
            instantiates with [[host_name]]: {"name": "function<float, 4>"}.
        metal_version: the value of __METAL_VERSION__.
        trace: watch every access to memory. Finds races, reads of uninitialized threadgroup memory
            and accesses a byte outside, and counts bytes; a launch takes several times as long.
        values: follow every value instead. Finds branches, addresses and stores to buffers that
            depend on variables, threadgroup memory or cooperative tensors that were never set.
        name: what compiler messages and findings call a source that is text.

    Returns:
        The library; compiled code is kept in the user's cache and found there by its content.

    Raises:
        CompileError: the message says which line of the source is wrong and why.
        CompilerMissing: the message says what to install.
        ValueError: trace and values are both True.
    """
    if trace and values:
        raise ValueError("[compile] trace and values must not both be True.")
    watch = "accesses" if trace else "values" if values else "nothing"
    request = building.request(
        source, include_dirs, defines, instantiations, metal_version, watch, name
    )
    return Library(building.build(request))


class Library:
    """Kernels that were compiled together."""

    def __init__(self, built: building.Built) -> None:
        self._built = built
        self._native = native.NativeLibrary(built.path)
        self._instances = {instance.host_name: instance for instance in built.instances}

    @property
    def kernels(self) -> tuple[str, ...]:
        """The host names of all kernels."""
        return tuple(self._instances)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the emulator is not sure to do what Metal does."""
        return self._built.warnings

    def pipeline(self, host_name: str, constants: Mapping[int, Any] | None = None) -> Kernel:
        """A kernel with values for its function constants.

        Args:
            host_name: one of `kernels`.
            constants: values by index.

        Raises:
            ValueError: there is no such kernel or function constant, the constant's type does not
                have the value, or a function constant that the kernel uses has none.
        """
        if host_name not in self._instances:
            known = ", ".join(self._instances) or "none"
            raise ValueError(f"[pipeline] host_name must be one of {known}, got {host_name}.")
        packed = {index: self._pack(index, value) for index, value in (constants or {}).items()}
        missing = set(self._instances[host_name].needed_constants) - packed.keys()
        if missing:
            names = {constant.index: constant.name for constant in self._built.constants}
            described = ", ".join(f"{names[index]} (index {index})" for index in sorted(missing))
            raise ValueError(
                f"[pipeline] constants must have a value for each function constant that kernel "
                f"{host_name} uses: {described}."
            )
        return Kernel(self._native, self._instances[host_name], packed)

    def _pack(self, index: int, value: Any) -> bytes:
        types = {constant.index: constant.type for constant in self._built.constants}
        if index not in types:
            raise ValueError(
                f"[pipeline] constants must be function constants of the library "
                f"({', '.join(map(str, sorted(types))) or 'there are none'}), got {index}."
            )
        packed = pack(types[index], value)
        if packed is None:
            raise ValueError(
                f"[pipeline] constants[{index}] is of type {types[index]}, which cannot be set."
            )
        return packed.tobytes()


class Kernel:
    """A kernel ready to be launched."""

    def __init__(
        self, library: native.NativeLibrary, instance: Instance, constants: Mapping[int, bytes]
    ) -> None:
        self._native = library
        self._instance = instance
        self._constants = constants
        self._buffers = {a.index: a for a in instance.arguments if a.kind != "threadgroup"}
        self._memory = {a.index: a for a in instance.arguments if a.kind == "threadgroup"}

    @property
    def name(self) -> str:
        """The host name."""
        return self._instance.host_name

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The buffers and the threadgroup memory that a launch binds."""
        return self._instance.arguments

    def launch(
        self,
        buffers: Mapping[int, Any],
        grid: Sequence[int] | None = None,
        threadgroup: Sequence[int] = (1, 1, 1),
        *,
        threads: Sequence[int] | None = None,
        threadgroup_memory: Mapping[int, int] | None = None,
        policies: Policies | None = None,
        check: bool = True,
        os_threads: int | None = None,
    ) -> Launch:
        """Run the kernel.

        Args:
            buffers: by index: a contiguous NumPy array (written in place if the kernel may write
                to the buffer; for a tensor_handle argument, contiguous along the last axis only),
                bytes, a number for a parameter of a scalar type, or None for a buffer that the
                kernel will not touch. A buffer that a function constant disables may be left out.
            grid: the number of threadgroups along each axis.
            threadgroup: the number of threads of a threadgroup along each axis.
            threads: instead of grid, the number of threads along each axis; threadgroups at the
                far edges are smaller, as with Metal's dispatchThreads.
            threadgroup_memory: bytes of each [[threadgroup(i)]] parameter.
            policies: how to decide what Metal leaves open.
            check: raise a Fault if the kernel is found wrong.
            os_threads: how many threadgroups run at a time (default: one a processor).

        Raises:
            ValueError: an argument does not fit the kernel.
            Fault: the kernel is wrong; the message says where.
        """
        bound = self._bind(buffers)
        tensors = {i: self._tensor(i, array) for i, array in bound.items() if self._is_tensor(i)}
        bound |= {index: tensor.memory for index, tensor in tensors.items()}
        memory = self._sizes(threadgroup_memory or {})
        if (grid is None) == (threads is None):
            raise ValueError("[launch] either grid or threads must be given.")
        groups = _triple("grid", grid if grid is not None else (1, 1, 1))
        group = _triple("threadgroup", threadgroup)
        _check_threads(groups, group)
        with native.LAUNCHING:
            self._native.set_constants(self._constants)
            self._native.set_tensors(tensors)
            status = self._native.launch(
                self.name,
                bound,
                memory,
                groups,
                group,
                _triple("threads", threads) if threads is not None else None,
                EmuPolicies.of(policies or Policies()),
                os_threads or len(os.sched_getaffinity(0)),
            )
            result = self._result(bound)
        return self._judge(status, result, check)

    def _result(self, bound: Mapping[int, np.ndarray[Any, Any]]) -> Launch:
        return Launch(
            counters=self._native.counters(),
            buffer_bytes=self._native.buffer_bytes(),
            buffer_sizes={index: array.nbytes for index, array in bound.items()},
            constant_buffers=frozenset(i for i in bound if self._buffers[i].constant),
            is_traced=self._native.is_trace,
            findings=self._findings(),
        )

    def _judge(self, status: int, result: Launch, check: bool) -> Launch:
        if status == native.BAD_ARGUMENT:
            raise ValueError(f"[launch] {'; '.join(map(str, result.findings))}")
        if status not in (native.OK, native.FAULT):
            raise EmulatorError(f"kernel {self.name} could not be launched (status {status})")
        wrong = [finding for finding in result.findings if finding.severity != "note"]
        if check and wrong:
            raise Fault(wrong)
        return result

    def _bind(self, buffers: Mapping[int, Any]) -> dict[int, np.ndarray[Any, Any]]:
        unknown = buffers.keys() - self._buffers.keys()
        if unknown:
            raise ValueError(
                f"[launch] buffers must be those of kernel {self.name} "
                f"({', '.join(map(str, sorted(self._buffers)))}), got {min(unknown)}."
            )
        bound = {}
        for index, argument in self._buffers.items():
            value = buffers.get(index)
            if index not in buffers and not argument.optional:
                raise ValueError(f"[launch] {self._describe(argument)} must be bound.")
            if value is not None:
                bound[index] = self._array(argument, value)
        return bound

    def _is_tensor(self, index: int) -> bool:
        return self._buffers[index].kind == "tensor"

    def _tensor(self, index: int, array: np.ndarray[Any, Any]) -> Tensor:
        try:
            return Tensor.of(array)
        except ValueError as error:
            message = f"[launch] {self._describe(self._buffers[index])} {error}."
            raise ValueError(message) from None

    def _describe(self, argument: Argument) -> str:
        return f"buffer {argument.index} ({argument.name}) of kernel {self.name}"

    def _array(self, argument: Argument, value: Any) -> np.ndarray[Any, Any]:
        if argument.kind == "tensor":
            return self._checked_tensor(argument, value)
        if isinstance(value, bytes | bytearray | memoryview):
            return np.array(bytearray(value), np.uint8)
        if isinstance(value, np.ndarray):
            return self._checked(argument, value)
        packed = pack(argument.type, value)
        if packed is not None:
            return packed
        if isinstance(value, np.generic):
            return np.array([value])
        raise ValueError(
            f"[launch] {self._describe(argument)} is of type {argument.type}: it must be an array, "
            f"bytes or a NumPy scalar, got {value!r}."
        )

    def _checked(self, argument: Argument, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if argument.writable and not (array.flags.writeable and array.flags.c_contiguous):
            raise ValueError(
                f"[launch] {self._describe(argument)} must be contiguous and writable, as the "
                "kernel may write to it."
            )
        if array.dtype.kind not in "biufc" or array.dtype in (np.float64, np.complex128):
            raise ValueError(
                f"[launch] {self._describe(argument)} must be an array of a type that Metal has, "
                f"got {array.dtype}."
            )
        contiguous: np.ndarray[Any, Any] = np.ascontiguousarray(array)
        return contiguous

    def _checked_tensor(self, argument: Argument, array: Any) -> np.ndarray[Any, Any]:
        if not isinstance(array, np.ndarray) or (argument.writable and not array.flags.writeable):
            raise ValueError(
                f"[launch] {self._describe(argument)} is a tensor: it must be a writable array, "
                f"got {type(array).__name__}."
            )
        return array

    def _sizes(self, memory: Mapping[int, int]) -> list[int]:
        if memory.keys() != self._memory.keys():
            raise ValueError(
                f"[launch] threadgroup_memory must have sizes for {sorted(self._memory)}, "
                f"got {sorted(memory)}."
            )
        return [memory.get(index, 0) for index in range(max(memory, default=-1) + 1)]

    def _findings(self) -> tuple[Finding, ...]:
        return tuple(self._finding(details) for details in self._native.findings())

    def _finding(self, details: dict[str, Any]) -> Finding:
        buffer = details.get("buffer")
        argument = self._buffers.get(buffer) if buffer is not None else None
        threadgroup = details.get("threadgroup")
        other = details.get("other_pcs", ())
        return Finding(
            kind=details["kind"],
            severity=details["severity"],
            message=details["message"],
            kernel=self.name,
            count=details.get("count", 1),
            threadgroup=tuple(threadgroup) if threadgroup else None,
            lane=details.get("lane"),
            place=lines.place_of(self._native.path, details.get("pcs", ()), _OWN_SOURCES),
            other_place=lines.place_of(self._native.path, other, _OWN_SOURCES),
            buffer=buffer,
            argument=argument.name if argument else None,
            byte=details.get("byte"),
            details=details,
        )


def _triple(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    fits = isinstance(sizes, Sequence) and 1 <= len(sizes) <= 3
    if not fits or not all(isinstance(n, int | np.integer) and 0 < n < 2**32 for n in sizes):
        raise ValueError(
            f"[launch] {name} must be one to three whole numbers from 1 to 2^32 - 1, got {sizes}."
        )
    return (*map(int, sizes), 1, 1)[:3]


def _check_threads(grid: Sequence[int], threadgroup: Sequence[int]) -> None:
    """Positions of threads have 32 bits."""
    if any(n * m >= 2**32 for n, m in zip(grid, threadgroup, strict=False)):
        raise ValueError(
            f"[launch] grid must have fewer than 2^32 threads along each axis, got {tuple(grid)} "
            f"threadgroups of {tuple(threadgroup)}."
        )
