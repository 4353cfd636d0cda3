"""The C interface of a compiled library (emulator/abi.h), through ctypes."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_tensorops.testing.emulator.errors import EmulatorError
from mlx_tensorops.testing.emulator.policies import EmuPolicies
from mlx_tensorops.testing.emulator.tensors import Tensor

ABI_VERSION = 1
OK, FAULT, UNKNOWN_KERNEL, BAD_ARGUMENT, NO_MEMORY = range(5)
N_BUFFERS = 31
# emu::Counters of emulator/runtime.h, in its order.
COUNTERS = (
    "matmul_flops",
    "simdgroup_matrix_flops",
    "strict_float_flops",
    "integer_flops",
    "matmul_calls",
    "threadgroup_barriers",
    "simdgroup_barriers",
    "quadgroup_barriers",
    "simd_ops",
    "threadgroup_bytes",
    "threadgroup_read_bytes",
    "threadgroup_written_bytes",
    "device_read_bytes",
    "device_written_bytes",
)

# A launch owns the process's handlers of SIGSEGV and its like: one at a time, in all libraries.
LAUNCHING = threading.Lock()
# EMU_STACK_POOL_BYTES: where all libraries keep the stacks of GPU threads between launches.
_STACKS = (ctypes.c_uint64 * 512)()


class NativeLibrary:
    """A loaded library. Callers hold LAUNCHING from set_constants to the last result."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._declare()
        version = self._library.emu_abi_version()
        if version != ABI_VERSION:
            raise EmulatorError(f"{path} has interface {version}, wanted {ABI_VERSION}")
        self._library.emu_share_stacks(_STACKS)
        self.is_trace = bool(self._library.emu_is_trace())

    def _declare(self) -> None:
        library = self._library
        pointers = ctypes.POINTER(ctypes.c_void_p)
        sizes, words = ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_uint32)
        for name in ("emu_kernels", "emu_constants", "emu_findings"):
            getattr(library, name).restype = ctypes.c_char_p
        library.emu_set_constant.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        library.emu_counters.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_int]
        library.emu_buffer_bytes.argtypes = [ctypes.POINTER(ctypes.c_uint64)] * 2
        shape = ctypes.POINTER(ctypes.c_int64)
        library.emu_set_tensor.argtypes = [*[ctypes.c_int] * 3, shape, shape]
        library.emu_launch.argtypes = [
            ctypes.c_char_p,
            ctypes.c_int,
            pointers,
            sizes,
            ctypes.c_int,
            sizes,
            words,
            words,
            words,
            ctypes.POINTER(EmuPolicies),
            ctypes.c_int,
        ]

    def set_constants(self, constants: Mapping[int, bytes]) -> None:
        """Give function constants these values, and no value to all others."""
        self._library.emu_clear_constants()
        for index, value in constants.items():
            if self._library.emu_set_constant(index, value, len(value)) <= 0:
                raise EmulatorError(f"function constant {index} does not take {len(value)} bytes")

    def set_tensors(self, tensors: Mapping[int, Tensor]) -> None:
        """Describe the tensors that buffers hold, and no others."""
        self._library.emu_clear_tensors()
        for index, tensor in tensors.items():
            extents, strides = (
                (ctypes.c_int64 * len(sizes))(*sizes) for sizes in (tensor.extents, tensor.strides)
            )
            rank, element_bytes = len(extents), tensor.memory.itemsize
            if self._library.emu_set_tensor(index, rank, element_bytes, extents, strides):
                raise EmulatorError(f"buffer {index} cannot be a tensor of {rank} dimensions")

    def launch(
        self,
        kernel: str,
        buffers: Mapping[int, Any],
        threadgroup_bytes: Sequence[int],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        threads: Sequence[int] | None,
        policies: EmuPolicies,
        os_threads: int,
    ) -> int:
        """Run the kernel on arrays that are bound by index; they are written in place."""
        n_buffers = max(buffers, default=-1) + 1
        pointers = (ctypes.c_void_p * n_buffers)()
        sizes = (ctypes.c_size_t * n_buffers)()
        for index, array in buffers.items():
            pointers[index], sizes[index] = array.ctypes.data, array.nbytes
        n_threadgroup = len(threadgroup_bytes)
        words = ctypes.c_uint32 * 3
        status: int = self._library.emu_launch(
            kernel.encode(),
            n_buffers,
            pointers,
            sizes,
            n_threadgroup,
            (ctypes.c_size_t * n_threadgroup)(*threadgroup_bytes),
            words(*grid),
            words(*threadgroup),
            words(*threads) if threads is not None else None,
            ctypes.byref(policies),
            os_threads,
        )
        return status

    def findings(self) -> list[dict[str, Any]]:
        """What the last launch found, as the runtime says it."""
        found: list[dict[str, Any]] = json.loads(self._library.emu_findings())
        return found

    def counters(self) -> dict[str, int]:
        """What the last launch cost."""
        values = (ctypes.c_uint64 * len(COUNTERS))()
        self._library.emu_counters(values, len(COUNTERS))
        return dict(zip(COUNTERS, values, strict=True))

    def buffer_bytes(self) -> dict[int, tuple[int, int]]:
        """Bytes read and written through each buffer that the last launch touched, if traced."""
        read, written = ((ctypes.c_uint64 * N_BUFFERS)() for _ in range(2))
        self._library.emu_buffer_bytes(read, written)
        pairs = enumerate(zip(read, written, strict=True))
        return {index: pair for index, pair in pairs if any(pair)}
