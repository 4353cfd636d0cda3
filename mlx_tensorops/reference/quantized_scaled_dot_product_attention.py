"""Reference of ``quantized_scaled_dot_product_attention``: decode keys and values, then attend.

Decoded values are rounded to float32 where the arithmetic is; see ``formats``.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array, matmul, to_numpy
from mlx_tensorops.reference.dequantize import weights
from mlx_tensorops.reference.scaled_dot_product_attention import Options, Parts, parts

Format = tuple[int, int]
"Group size and bits."


def decoded(packed: Sequence[mx.array], form: Format, arithmetic: DTypeLike = np.float64) -> Array:
    """The values of packed codes, scales and biases."""
    w, scales, biases = packed
    return weights(w, scales, biases, *form, arithmetic=arithmetic)


def quantized_scaled_dot_product_attention(
    q: mx.array,
    k: Sequence[mx.array],
    v: Sequence[mx.array],
    options: Options,
    formats: tuple[Format, Format],
    arithmetic: DTypeLike = np.float64,
) -> tuple[Array, Array, Parts]:
    """The output, the logsumexp and the weights, in ``arithmetic``."""
    keys = decoded(k, formats[0], arithmetic)
    values = decoded(v, formats[1], arithmetic)
    terms = parts(to_numpy(q, arithmetic), keys, options)
    return matmul(terms.p, terms.spread(values)), terms.lse, terms
