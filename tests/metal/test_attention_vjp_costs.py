"""Operations of attention's backward pass in Metal: seven products to the forward pass's two."""

import pytest
from metal_attention_costs import AttentionShape, needed_flops, seen_by
from metal_attention_vjp_costs import backward_cost

LIMIT = 3.6
SHAPES = [
    AttentionShape(256, 256, 2, 1, d=64, causal=True),
    AttentionShape(257, 257, 2, 1, causal=True),
    AttentionShape(256, 256, kind="bfloat16_t"),
    AttentionShape(192, 256, d=64, kind="float"),
    AttentionShape(128, 128, d=256),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_more_than_two_recomputing_kernels_need(shape):
    cost = backward_cost(shape)
    assert cost.forward > 0 and 3.5 * needed_flops(shape, seen_by(shape)) <= cost.backward
    assert cost.backward <= LIMIT * cost.forward


def test_a_window_costs_what_it_shows():
    """Seven products of what is seen, and 1.4 times that with what tiles hold besides."""
    shape = AttentionShape(2048, 2048, d=16)
    needed = 3.5 * needed_flops(shape, seen_by(shape, window=256))
    assert needed <= backward_cost(shape, window=256).backward <= 1.4 * needed


def test_owners_of_keys_share_rows_that_registers_do_not_hold():
    """Of 128 columns two simdgroups have 64 of d_k and of d_v each, and compute no score twice."""
    wide, narrow = backward_cost(AttentionShape(128, 128)), AttentionShape(128, 128, d=64)
    assert "false, 64, 64, 32, 2, true" in wide.kernels[1]
    assert wide.backward == 2 * backward_cost(narrow).backward
