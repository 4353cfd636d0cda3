"""Attention over several sets of keys, from that over each."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlx_tensorops import _ext


def merge_attention(
    outs: Sequence[mx.array],
    lses: Sequence[mx.array],
    *,
    stream: mx.Stream | mx.Device | None = None,
) -> tuple[mx.array, mx.array]:
    """Merge partial attention: the output over all keys, from those over disjoint sets of them.

    ::

        lse = log(sum of exp(lse_n)),  out = sum of exp(lse_n - lse) * out_n

    Computed in float32. Where every lse is -inf, the output is 0 and the lse -inf. Differentiable
    in all inputs. Attention sinks count once: pass them to one part only.

    Args:
        outs: Outputs ``(..., Dv)`` of one shape, each over other keys, floating.
        lses: The logsumexp ``(...)`` of each, as ``return_lse`` gives it.
        stream: Stream or device to run on. Default: the default one.

    Returns:
        The output ``(..., Dv)`` of the result type of ``outs``, and its logsumexp ``(...)``,
        float32.

    Raises:
        ValueError: no arrays, or shapes or dtypes that do not fit each other.

    Example:
        >>> q, k, v = (mx.random.normal((1, 8, 64, 32)) for _ in range(3))
        >>> parts = [
        ...     mto.scaled_dot_product_attention(q, a, b, scale=1.0, return_lse=True)
        ...     for a, b in zip(mx.split(k, 2, 2), mx.split(v, 2, 2))
        ... ]
        >>> out, lse = mto.merge_attention(*zip(*parts))

    Source: Ye et al., Cascade Inference, flashinfer.ai, 2024; equation of arXiv:2205.14135, 3.1.
    """
    for name, arrays in (("outs", outs), ("lses", lses)):
        if isinstance(arrays, mx.array):
            raise ValueError(f"[merge_attention] {name} must be a list of arrays, got one array.")
    return _ext.merge_attention(list(outs), list(lses), stream)
