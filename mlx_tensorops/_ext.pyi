from collections.abc import Callable, Sequence
from typing import Any

import mlx.core

def quantize(
    w: mlx.core.array,
    group_size: int | None,
    bits: int | None,
    mode: str,
    global_scale: mlx.core.array | None,
    force_fused: bool,
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> list[mlx.core.array]: ...
def dequantize(
    w: mlx.core.array,
    scales: mlx.core.array,
    biases: mlx.core.array | None,
    group_size: int | None,
    bits: int | None,
    mode: str,
    global_scale: mlx.core.array | None,
    dtype: mlx.core.Dtype | None,
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
    scales: mlx.core.array,
    biases: mlx.core.array | None,
    transpose: bool,
    group_size: int | None,
    bits: int | None,
    mode: str,
    force_fused: bool,
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None,
) -> mlx.core.array: ...
def cpu_isa() -> str: ...
def cpu_isas() -> list[str]: ...
def set_cpu_isa(name: str) -> None: ...
def num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def supports(
    op: str, backend: str, dtype: mlx.core.Dtype, bits: int, group_size: int, mode: str
) -> str:
    """The reason why no kernel covers the case, or an empty string."""

def counters() -> list[tuple[str, str, str, int]]: ...
def reset_counters() -> None: ...
def smoke(a: mlx.core.array) -> bool:
    """
    True for a scalar: shows that this module and mlx.core share their types.
    """
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
