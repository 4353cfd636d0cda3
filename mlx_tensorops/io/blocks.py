"""Turn the blocks of a GGUF tensor into MLX arrays without changing a value.

A Q4_0, Q4_1 or Q8_0 block holds 32 values that share one scale, which is MLX's affine quantization
with groups of 32: the codes are only re-packed. With d and m the block's float16 numbers and q a
code,

    Q4_1:  d * q + m            4 bits, scale d, bias m
    Q4_0:  d * (q - 8)          4 bits, scale d, bias -8 d
    Q8_0:  d * q, q signed      8 bits, scale d, bias -128 d, codes q + 128

Every product has at most 19 significant bits, so scales, biases and products are exact in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlx_tensorops.io.gguf import Tensor

GROUP_SIZE = 32
DENSE_TYPES = ("F32", "F16", "BF16")
AFFINE_TYPES = ("Q4_0", "Q4_1", "Q8_0")

_Q4_0 = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])
_Q4_1 = np.dtype([("scale", "<f2"), ("bias", "<f2"), ("codes", "u1", 16)])
_Q8_0 = np.dtype([("scale", "<f2"), ("codes", "u1", 32)])


@dataclass(frozen=True)
class Dense:
    """A tensor that is not quantized.

    Attributes:
        weight: float32, the tensor's shape. F16 and BF16 widen exactly.
    """

    weight: NDArray[np.float32]


@dataclass(frozen=True)
class Affine:
    """A tensor in MLX's affine quantization with groups of 32.

    Attributes:
        bits: Bits of a code.
        weight: uint32 ``[..., K * bits / 32]``, the packed codes.
        scales: float32 ``[..., K / 32]``.
        biases: float32 ``[..., K / 32]``.
    """

    bits: int
    weight: NDArray[np.uint32]
    scales: NDArray[np.float32]
    biases: NDArray[np.float32]


def decode(tensor: Tensor, raw: bytes) -> Dense | Affine:
    """Decode one tensor.

    Args:
        tensor: Its row of the tensor table.
        raw: Its bytes.

    Returns:
        ``Affine`` for Q4_0, Q4_1 and Q8_0, ``Dense`` for F32, F16 and BF16.
    """
    if tensor.type in DENSE_TYPES:
        return Dense(_widen(tensor.type, raw).reshape(tensor.shape))
    layout = {"Q4_0": _Q4_0, "Q4_1": _Q4_1, "Q8_0": _Q8_0}[tensor.type]
    blocks = np.frombuffer(raw, layout).reshape(*tensor.shape[:-1], tensor.shape[-1] // GROUP_SIZE)
    scales = blocks["scale"].astype(np.float32)
    biases = _biases(tensor.type, blocks, scales)
    if tensor.type == "Q8_0":
        # Adding 128 modulo 256 moves the signed codes -128..127 to 0..255.
        codes = blocks["codes"] + np.uint8(128)
        return Affine(8, _as_words(codes), scales, biases)
    return Affine(4, _as_words(_in_order(blocks["codes"])), scales, biases)


def _biases(
    type_name: str, blocks: NDArray[np.void], scales: NDArray[np.float32]
) -> NDArray[np.float32]:
    if type_name == "Q4_1":
        biases: NDArray[np.float32] = blocks["bias"].astype(np.float32)
        return biases
    # A NaN in a damaged file is the caller's to refuse, not NumPy's to warn of.
    with np.errstate(invalid="ignore"):
        biases = scales * np.float32(-128 if type_name == "Q8_0" else -8)
    return biases


def _widen(type_name: str, raw: bytes) -> NDArray[np.float32]:
    if type_name == "BF16":
        # bfloat16 is the upper half of a float32.
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, "<f4" if type_name == "F32" else "<f2").astype(np.float32)


def _in_order(nibbles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Re-pack 4-bit codes: a byte of a GGUF block has values k and k + 16, of MLX 2k and 2k + 1."""
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)
    packed: NDArray[np.uint8] = codes[..., 0::2] | codes[..., 1::2] << 4
    return packed


def _as_words(codes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Join the packed bytes ``[..., blocks, bytes]`` of each row and read them as words."""
    rows = np.ascontiguousarray(codes).reshape(*codes.shape[:-2], codes.shape[-2] * codes.shape[-1])
    return rows.view("<u4").astype(np.uint32, copy=False)
