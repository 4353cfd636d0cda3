"""Reference of ``merge_attention``.

lse = log(sum of exp(lse_n)), out = sum of exp(lse_n - lse) * out_n; where every lse_n is -inf, out
is 0 and lse is -inf.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array, to_numpy


def merge_attention(
    outs: Sequence[mx.array], lses: Sequence[mx.array], arithmetic: DTypeLike = np.float64
) -> tuple[Array, Array]:
    """The merged output and logsumexp, in ``arithmetic``."""
    logits = np.stack([to_numpy(lse, arithmetic) for lse in lses])
    values = np.stack([to_numpy(out, arithmetic) for out in outs])
    top = logits.max(0)
    weights = np.exp(logits - np.where(np.isinf(top), 0, top))
    total = weights.sum(0)
    safe = np.where(total == 0, 1, total)
    lse = np.where(total == 0, -np.inf, np.where(np.isinf(top), 0, top) + np.log(safe))
    out = (weights[..., None] * values).sum(0) / safe[..., None]
    return out.astype(arithmetic), lse.astype(arithmetic)
