"""Bytes and operations of attention's forward pass in Metal, against MLX's kernel and the need."""

import mlx.core as mx
import numpy as np
import pytest
from metal_attention_costs import (
    AttentionShape,
    issued_flops,
    mlx_tiles,
    needed_flops,
    ours,
    seen_by,
)

MARGIN = 1.4
SHAPES = [
    AttentionShape(257, 257, 2, 1, causal=True),
    AttentionShape(257, 257, 2, 1, d=64),
    AttentionShape(128, 256, d=64, kind="bfloat16_t"),
    AttentionShape(64, 192, kind="float", causal=True),
    AttentionShape(96, 160, d=256),
    AttentionShape(96, 96, d=256, causal=True),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_more_bytes_and_operations_than_mlx(shape):
    own, mlx = ours(shape), mlx_tiles(shape)
    assert own.total <= mlx.total
    assert own.n_bytes["k"] + own.n_bytes["v"] <= mlx.n_bytes["k"] + mlx.n_bytes["v"]
    needed = needed_flops(shape, seen_by(shape))
    assert needed <= own.matrix_flops <= mlx.matrix_flops


def test_a_window_costs_what_it_shows():
    """8192 queries that see 1024 keys: the first 1024, and the others 256 at a time, all alike."""
    length, window, part = 8192, 1024, 256
    first = AttentionShape(window, window, d=32, causal=True)
    other = AttentionShape(part, length, d=32)
    middle = AttentionShape(part, length // 2 + part, d=32)
    issued = issued_flops(other, window=window)
    assert issued == issued_flops(middle, window=window), "where a row is makes no difference"
    total = issued_flops(first, window=window) + (length - window) // part * issued
    needed = needed_flops(first, seen_by(first, window))
    needed += (length - window) // part * needed_flops(other, seen_by(other, window))
    assert needed == 4 * 32 * (window * (window + 1) // 2 + (length - window) * window)
    assert needed <= total <= MARGIN * needed


@pytest.mark.parametrize("causal", (True, False))
def test_packed_documents_cost_what_they_show(causal):
    lengths = (300, 50, 700, 130, 500, 368)
    shape = AttentionShape(sum(lengths), sum(lengths), d=32, causal=causal)
    ends = mx.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    needed = needed_flops(shape, seen_by(shape, lengths=lengths))
    issued = issued_flops(shape, cu_seqlens=ends)
    assert needed <= issued <= MARGIN * needed
    ids = mx.array(np.repeat(np.arange(len(lengths)), lengths).astype(np.int32))[None]
    assert issued_flops(shape, segment_ids=ids) <= MARGIN * needed


def test_blocks_that_are_masked_are_not_computed():
    shape = AttentionShape(256, 512, d=32)
    blocks = np.random.default_rng(0).random((1, 1, 4, 8)) < 0.5
    issued = issued_flops(shape, block_mask=mx.array(blocks), block_size=(64, 64))
    assert issued == 4 * 32 * 64 * 64 * int(blocks.sum())
