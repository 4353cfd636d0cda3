from collections.abc import Callable, Sequence
from typing import Any

import mlx.core

def quantize(
    w: mlx.core.array,
    group_size: int | tuple[int, int] | None,
    bits: int | None,
    mode: str,
    global_scale: mlx.core.array | None,
    route: str | None,
    force_fused: bool,
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> list[mlx.core.array]: ...
def dequantize(
    w: mlx.core.array,
    scales: mlx.core.array | None,
    biases: mlx.core.array | None,
    group_size: int | tuple[int, int] | None,
    bits: int | None,
    mode: str,
    global_scale: mlx.core.array | None,
    dtype: mlx.core.Dtype | None,
    route: str | None,
    force_fused: bool,
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> mlx.core.array: ...
def quantized_matmul(
    x: mlx.core.array,
    w: mlx.core.array,
    scales: mlx.core.array | None,
    biases: mlx.core.array | None,
    transpose: bool,
    group_size: int | tuple[int, int] | None,
    bits: int | None,
    mode: str,
    global_scale: mlx.core.array | None,
    precision: str | None,
    route: str | None,
    force_fused: bool,
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> mlx.core.array: ...
def merge_attention(
    outs: Sequence[mlx.core.array],
    lses: Sequence[mlx.core.array],
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> tuple[mlx.core.array, mlx.core.array]: ...

class AttentionOptions:
    def __init__(
        self,
        mask: str | mlx.core.array | None,
        sinks: mlx.core.array | None,
        window: int | tuple[int | None, int | None] | None,
        softcap: float | None,
        alibi: mlx.core.array | None,
        segment_ids: mlx.core.array | tuple[mlx.core.array, mlx.core.array] | None,
        cu_seqlens: mlx.core.array | tuple[mlx.core.array, mlx.core.array] | None,
        block_mask: mlx.core.array | None,
        block_size: tuple[int, int] | None,
        return_lse: bool,
        precision: str | None,
        route: str | None,
        force_fused: bool,
    ) -> None: ...

def scaled_dot_product_attention(
    q: mlx.core.array,
    k: mlx.core.array,
    v: mlx.core.array,
    scale: float,
    options: AttentionOptions,
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> tuple[mlx.core.array, mlx.core.array]: ...

class QuantizedOperand:
    def __init__(
        self, arrays: Sequence[mlx.core.array], group_size: int | None, bits: int | None, mode: str
    ) -> None: ...

def quantized_scaled_dot_product_attention(
    q: mlx.core.array,
    k: QuantizedOperand,
    v: QuantizedOperand,
    scale: float,
    options: AttentionOptions,
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> tuple[mlx.core.array, mlx.core.array]: ...
def supports_attention(backend: str, dtype: mlx.core.Dtype, d: int, d_v: int) -> str:
    """The reason why no kernel covers such an attention, or an empty string."""

def cpu_isa() -> str: ...
def cpu_isas() -> list[str]: ...
def set_cpu_isa(name: str) -> None: ...
def num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def supports(
    op: str,
    backend: str,
    dtype: mlx.core.Dtype,
    bits: int | None,
    group_size: int | tuple[int, int] | None,
    mode: str,
) -> str:
    """The reason why no kernel covers the case, or an empty string."""

def formats() -> list[dict[str, object]]:
    """The table of formats: a dictionary each."""

def register_format(name: str, block: int, block_bytes: int, decode_block: int, metal: str) -> None:
    """
    Adds a format of blocks. decode_block: the address of a function (block, values).
    """

def counters() -> list[tuple[str, str, str, int]]: ...
def reset_counters() -> None: ...
def callback(
    name: str,
    run: Callable[[Any, Any], None],
    inputs: Sequence[mlx.core.array],
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[mlx.core.Dtype],
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> list[mlx.core.array]: ...
def smoke(a: mlx.core.array) -> bool:
    """
    True for a scalar: shows that this module and mlx.core share their types.
    """

class MetalKernel:
    """One instance of a Metal kernel."""

    @property
    def op(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def constants(self) -> list[tuple[int, bool | int | int | float]]: ...
    @property
    def host_name(self) -> str: ...
    @property
    def pipeline_name(self) -> str: ...
    @property
    def source(self) -> str: ...

def set_metal_emulation(
    run: object | None,
    source: object | None = None,
    macos_major: int = 0,
    macos_minor: int = 0,
    architecture: str = "",
    build: str = "",
    verified: bool = False,
) -> None: ...
def without_emulation(run: Callable[[], object]) -> object: ...
def verdicts() -> list[tuple[MetalKernel, str, bool]]:
    """Of this process: (kernel, its fault or nothing, remembered)."""

def metal_kernels(a: mlx.core.array) -> list[MetalKernel]:
    """The Metal kernels that would compute a lazy array of one of our ops."""

def place(
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> tuple[str, str]: ...
def coverage(
    op: str,
    backend: str,
    dtypes: Sequence[tuple[str, mlx.core.Dtype]],
    bits: int,
    group_size: int,
    mode: str,
) -> tuple[str, bool]: ...
def reason_against(
    backend: str, unfit: str, unsupported: str, mlx_has_kernel: bool, route: str
) -> str:
    """
    Why an op gives such a call to MLX's, or an empty string: what the ops ask themselves.
    """

def check_route(op: str, route: str) -> None: ...
def last_reason() -> str:
    """
    What sent the last call of this thread to MLX's op, or an empty string.
    """
