"""The block formats of GGUF files, as stored: a row of bytes is a row of blocks.

``d`` and ``m`` (also ``dmin``) are float16, q a code. Where a block has a scale for each run of
16 or 32 values, these are themselves small integers under d. All products of d with a scale, and
of both with a code, are exact in float32 (at most 23 bits), so that a value is rounded once, where
a minimum is added.

=======  ======  =====  =========================================================================
mode     values  bytes  value
=======  ======  =====  =========================================================================
q4_0     32      18     d * (q - 8)
q4_1     32      20     d * q + m
q5_0     32      22     d * (q - 16)
q5_1     32      24     d * q + m
q8_0     32      34     d * q, q signed
iq4_nl   32      18     d * one of 16 levels
q2_k     256     84     d * scale * q - dmin * minimum, for runs of 16; 4 bits each
q3_k     256     110    d * (scale - 32) * (q - 4), for runs of 16; 6 bits
q4_k     256     144    d * scale * q - dmin * minimum, for runs of 32; 6 bits each
q5_k     256     176    the same
q6_k     256     210    d * scale * (q - 32), for runs of 16; 8 bits, signed
tq1_0    256     54     d * (q - 1), five ternary digits a byte
tq2_0    256     66     d * (q - 1), four a byte
=======  ======  =====  =========================================================================

Source: the GGUF/ggml block layouts (``ggml-common.h``, facts of the file format). Decoded only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlx_tensorops.reference._arrays import Array
from mlx_tensorops.reference.formats.packed import Packed, unpack
from mlx_tensorops.reference.formats.terms import Terms, over_blocks

IQ4_NL_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def _float16(octets: Array) -> Array:
    """Pairs of bytes [..., 2] as numbers [..., 1], float32."""
    return np.ascontiguousarray(octets).view("<f2").astype(np.float32)


def _halves(octets: Array) -> Array:
    """4-bit codes: first the low halves of all bytes, then the high ones."""
    return np.concatenate([octets & 15, octets >> 4], axis=-1).astype(np.float32)


def _planes(octets: Array, bits: int, run: int) -> Array:
    """Codes of runs of ``run`` bytes: of a run the lowest bits of all bytes, then the next."""
    runs = octets.reshape(*octets.shape[:-1], octets.shape[-1] // run, 1, run)
    shifts = np.arange(0, 8, bits)[:, None]
    n_codes = octets.shape[-1] * 8 // bits
    return np.asarray(((runs >> shifts) & (2**bits - 1)).reshape(*octets.shape[:-1], n_codes))


def _q4_0(block: Array) -> Terms:
    return Terms(_halves(block[..., 2:]) - 8, _float16(block[..., :2]))


def _q4_1(block: Array) -> Terms:
    return Terms(_halves(block[..., 4:]), _float16(block[..., :2]), _float16(block[..., 2:4]))


def _q5_0(block: Array) -> Terms:
    codes = _halves(block[..., 6:]) + 16 * unpack(block[..., 2:6], 1)
    return Terms((codes - 16).astype(np.float32), _float16(block[..., :2]))


def _q5_1(block: Array) -> Terms:
    codes = _halves(block[..., 8:]) + 16 * unpack(block[..., 4:8], 1)
    scales, biases = _float16(block[..., :2]), _float16(block[..., 2:4])
    return Terms(codes.astype(np.float32), scales, biases)


def _q8_0(block: Array) -> Terms:
    codes = np.ascontiguousarray(block[..., 2:]).view(np.int8).astype(np.float32)
    return Terms(codes, _float16(block[..., :2]))


def _iq4_nl(block: Array) -> Terms:
    return Terms(IQ4_NL_LEVELS[_halves(block[..., 2:]).astype(int)], _float16(block[..., :2]))


def _q2_k(block: Array) -> Terms:
    codes = _planes(block[..., 16:80], 2, 32).astype(np.float32)
    d, dmin = _float16(block[..., 80:82]), _float16(block[..., 82:84])
    scales, minima = block[..., :16] & 15, block[..., :16] >> 4
    return Terms(codes, over_blocks(d * scales, 16), -over_blocks(dmin * minima, 16))


def _q3_k(block: Array) -> Terms:
    high_bits = _planes(block[..., :32], 1, 32)
    codes = _planes(block[..., 32:96], 2, 32) + 4 * high_bits.astype(np.float32) - 4
    low, high = block[..., 96:104], block[..., 104:108]
    scales = np.concatenate([low & 15, low >> 4], axis=-1) | _planes(high, 2, 4) << 4
    scales = scales.astype(np.float32) - 32
    return Terms(codes.astype(np.float32), over_blocks(_float16(block[..., 108:]) * scales, 16))


def _six_bit_pairs(octets: Array) -> tuple[Array, Array]:
    """Eight scales and eight minima of 6 bits, from 12 bytes.

    The first four of each are the low 6 bits of bytes 0-3 and 4-7; the others have their low 4 bits
    in the halves of bytes 8-11, and their top 2 in those of bytes 0-3 and 4-7.
    """
    first, second, rest = octets[..., :4], octets[..., 4:8], octets[..., 8:]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6) << 4], axis=-1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6) << 4], axis=-1)
    return scales, minima


def _with_minima(block: Array, codes: Array) -> Terms:
    d, dmin = _float16(block[..., :2]), _float16(block[..., 2:4])
    scales, minima = _six_bit_pairs(block[..., 4:16])
    scales, biases = over_blocks(d * scales, 32), -over_blocks(dmin * minima, 32)
    return Terms(codes.astype(np.float32), scales, biases)


def _q4_k(block: Array) -> Terms:
    return _with_minima(block, _planes(block[..., 16:], 4, 32))


def _q5_k(block: Array) -> Terms:
    return _with_minima(
        block, _planes(block[..., 48:], 4, 32) + 16 * _planes(block[..., 16:48], 1, 32)
    )


def _q6_k(block: Array) -> Terms:
    codes = _planes(block[..., :128], 4, 64) + 16 * _planes(block[..., 128:192], 2, 32)
    scales = np.ascontiguousarray(block[..., 192:208]).view(np.int8)
    scales = over_blocks(_float16(block[..., 208:]) * scales, 16)
    return Terms(codes.astype(np.float32) - 32, scales)


def _digits(octets: Array, n_digits: int) -> Array:
    """Ternary digits: first the leading one of every byte, then the second, ...

    A byte holds the fraction 0.abcde (base 3) times 256, rounded up: the integer part of three
    times the fraction is a digit, and what is left goes on.
    """
    factors = 3 ** np.arange(n_digits)[:, None]
    rest = (octets[..., None, :].astype(np.int64) * factors) % 256
    return (rest * 3 >> 8).reshape(*octets.shape[:-1], n_digits * octets.shape[-1])


def _tq1_0(block: Array) -> Terms:
    parts = (block[..., :32], 5), (block[..., 32:48], 5), (block[..., 48:52], 4)
    codes = np.concatenate([_digits(octets, n) for octets, n in parts], axis=-1)
    return Terms(codes.astype(np.float32) - 1, _float16(block[..., 52:]))


def _tq2_0(block: Array) -> Terms:
    codes = _planes(block[..., :64], 2, 32).astype(np.float32) - 1
    return Terms(codes, _float16(block[..., 64:]))


@dataclass(frozen=True)
class Blocks:
    """One mode: the geometry of a block, and what its bytes [..., block_bytes] decode to."""

    block: int
    block_bytes: int
    parts: Callable[[Array], Terms]

    def decode(self, packed: Packed) -> Terms:
        """The parts of the values."""
        rows, n_bytes = packed.w.shape[:-1], packed.w.shape[-1]
        blocks = packed.w.reshape(*rows, n_bytes // self.block_bytes, self.block_bytes)
        with np.errstate(invalid="ignore"):
            terms = self.parts(blocks)
        shape = (*blocks.shape[:-1], self.block)

        def flat(part: Array) -> Array:
            values = np.broadcast_to(part, shape)
            return values.reshape(*rows, shape[-2] * self.block)

        biases = None if terms.biases is None else flat(terms.biases)
        return Terms(flat(terms.codes), flat(terms.scales), biases)


MODES = {
    "q4_0": Blocks(32, 18, _q4_0),
    "q4_1": Blocks(32, 20, _q4_1),
    "q5_0": Blocks(32, 22, _q5_0),
    "q5_1": Blocks(32, 24, _q5_1),
    "q8_0": Blocks(32, 34, _q8_0),
    "q2_k": Blocks(256, 84, _q2_k),
    "q3_k": Blocks(256, 110, _q3_k),
    "q4_k": Blocks(256, 144, _q4_k),
    "q5_k": Blocks(256, 176, _q5_k),
    "q6_k": Blocks(256, 210, _q6_k),
    "iq4_nl": Blocks(32, 18, _iq4_nl),
    "tq1_0": Blocks(256, 54, _tq1_0),
    "tq2_0": Blocks(256, 66, _tq2_0),
}
