"""The arrays of a quantized matrix, and bits of a row in order."""

from dataclasses import dataclass

import numpy as np

from mlx_tensorops.reference._arrays import Array


@dataclass(frozen=True)
class Packed:
    """A quantized matrix [..., N, K] as numpy arrays, and the options of the call.

    Attributes:
        w: Codes, uint32 or uint8, as the format stores them.
        scales: uint8 as stored, or float32; None where they are inside w.
        biases: float32, None for a format without them.
        group_size: Values that share a scale, in the formats that leave it open; a pair (rows,
            columns) in those of two dimensions.
        bits: Bits of a code, in the format that leaves it open.
        global_scale: A factor of all scales (nvfp4), None for 1.
    """

    w: Array
    scales: Array | None = None
    biases: Array | None = None
    group_size: int | tuple[int, int] | None = None
    bits: int | None = None
    global_scale: float | None = None


def pack(codes: Array, bits: int) -> Array:
    """Packs codes [..., K] into uint32 words [..., K * bits / 32], low bits first."""
    octets = np.ascontiguousarray(pack_bytes(codes, bits))
    return octets.view("<u4")


def pack_bytes(codes: Array, bits: int) -> Array:
    """Packs codes [..., K] into bytes [..., K * bits / 8], low bits first."""
    stream = (codes[..., None] >> np.arange(bits)) & 1
    stream = stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    return np.packbits(stream.astype(np.uint8), axis=-1, bitorder="little")


def unpack(words: Array, bits: int) -> Array:
    """Unpacks words or bytes [..., W] into codes [..., all bits of the row / bits]."""
    little = np.ascontiguousarray(words, words.dtype.newbyteorder("<"))
    stream = np.unpackbits(little.view(np.uint8), axis=-1, bitorder="little")
    n_codes = words.shape[-1] * 8 * words.dtype.itemsize // bits
    stream = stream.reshape(*words.shape[:-1], n_codes, bits)
    return np.asarray((stream.astype(np.int64) << np.arange(bits)).sum(axis=-1))
