"""Bytes that attention of few queries moves, against those of the cache, and against MLX's."""

import mlx.core as mx
import pytest
from metal_costs import to_mlx
from metal_decode_costs import (
    Decode,
    cache_bytes,
    caches,
    mlx_one_pass,
    mlx_two_passes,
    operands,
    ours,
)

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal

MARGIN = 1.1
DENSE = [
    Decode(1024),
    Decode(1024, heads=4, kv_heads=4),
    Decode(1024, heads=8, kv_heads=1, kind="bfloat16_t"),
    Decode(700, heads=4, kv_heads=2, n_q=2, kind="float"),
    Decode(1000, d=64, d_v=64, n_q=2),
    Decode(600, heads=4, d=256, d_v=256, kind="bfloat16_t"),
    Decode(600, heads=2, kv_heads=1, d=192, d_v=128),
]
FORMATS = ((32, 2), (64, 3), (64, 4), (128, 6), (64, 8))
HEADS = (1, 4, 8, 2, 4)
PACKED = [
    Decode(1536, heads=heads, kv_heads=1, packed=tuple(formats))
    for heads, *formats in zip(HEADS, FORMATS, FORMATS[1:] + FORMATS[:1], strict=True)
]


@pytest.mark.parametrize("case", DENSE, ids=str)
def test_each_key_is_read_once(case):
    cost = ours(case)
    assert cost.n_bytes["k"] + cost.n_bytes["v"] == cache_bytes(case)
    assert cost.total <= MARGIN * cache_bytes(case)
    for mlx in (mlx_one_pass(case), mlx_two_passes(case)):
        assert cost.total <= mlx.total


@pytest.mark.parametrize("case", PACKED, ids=str)
def test_each_code_is_read_once(case):
    cost = ours(case)
    assert cost.n_bytes["k"] + cost.n_bytes["v"] == cache_bytes(case)
    assert cost.total <= MARGIN * cache_bytes(case)


def test_keys_outside_the_window_are_not_read():
    case = Decode(2048, heads=4, kv_heads=1, window=256)
    cost = ours(case)
    assert cost.total <= 1.15 * cache_bytes(case)
    assert "queries" in cost.kernel


def test_the_limit_can_be_missed():
    """MLX reads keys once a query head."""
    case = DENSE[0]
    assert mlx_one_pass(case).total > 3 * MARGIN * cache_bytes(case)


def test_many_queries_read_codes_once_a_tile():
    """Codes, scales and biases once for 16 rows of a head; nothing decoded goes to memory."""
    case = Decode(96, heads=2, kv_heads=1, n_q=48, d=64, d_v=64, packed=((64, 4), (32, 8)))
    q, (k, v) = to_mlx(operands(case)[0]), caches(case)
    with emulated_metal(trace=True) as run:
        mx.eval(
            mto.quantized_scaled_dot_product_attention(
                q, k, v, 0.125, None, (64, 32), (4, 8), force_fused=True, stream=mx.cpu
            )
        )
    (launch,) = run.launches
    read = [sum(launch.buffer_bytes[i][0] for i in group) for group in ((1, 14, 15), (2, 16, 17))]
    assert read == [2 * 3 * sum(a.nbytes for a in arrays) for arrays in (k, v)]
    written = {i for i, (_, n_bytes) in launch.buffer_bytes.items() if n_bytes}
    assert written == {9, 10}  # the output and the logsumexp
