"""The cases of attention, each option's against the faults that kernels tend to have there."""

import attention_cases as cases
import mlx.core as mx
import numpy as np
import pytest
import suite
from attention_ops import ScaledDotProductAttention
from cases import BACKENDS

import mlx_tensorops as mto

BACKEND = BACKENDS["cpu"]
CASES = [*cases.single_cases(), *cases.shape_cases(), *cases.further_cases()]


def visible(case, options, shift=0):
    """The pairs with j <= i' + shift."""
    rows = mx.arange(case.n_q)[:, None] + case.n_k - case.n_q + shift
    return mx.arange(case.n_k) <= rows


def without(name):
    return lambda case, options: {name: None}


def shifted_causal(shift):
    def plant(case, options):
        return {"mask": visible(case, options, shift)} if case.mask == "causal" else {}

    return plant


def upper_left(case, options):
    return {"mask": visible(case, options, case.n_q - case.n_k)} if case.mask == "causal" else {}


def wider_window(case, options):
    return {"window": case.window + 1} if isinstance(case.window, int) else {}


def swapped_window(case, options):
    is_lopsided = isinstance(case.window, tuple) and case.window[0] != case.window[1]
    return {"window": case.window[::-1]} if is_lopsided else {}


def skipped_tile(case, options):
    """Keys 16 .. 31 are not visited by rows from 8 on."""
    if case.mask or case.n_q <= 8:
        return {}
    rows, keys = mx.arange(case.n_q)[:, None], mx.arange(case.n_k)
    return {"mask": (rows < 8) | (keys < 16) | (keys >= 32)}


def last_key_lost(case, options):
    return {} if case.mask else {"mask": mx.arange(case.n_k) < case.n_k - 1}


def padding_sees_padding(case, options):
    if not case.segments:
        return {}
    return {"segment_ids": tuple(mx.abs(ids) for ids in options["segment_ids"])}


def one_document(case, options):
    if not case.documents:
        return {}
    return {"cu_seqlens": tuple(ends[:: len(ends) - 1] for ends in options["cu_seqlens"])}


def blocks_one_off(case, options):
    return {"block_mask": mx.roll(options["block_mask"], 1, -1)} if case.blocks else {}


def half_slopes(case, options):
    return {"alibi": options["alibi"] / 2} if case.alibi else {}


def uncapped_by_a_hair(case, options):
    return {"softcap": case.softcap * 1.01} if case.softcap else {}


FAULTS = {
    "mask dropped": without("mask"),
    "window dropped": without("window"),
    "softcap dropped": without("softcap"),
    "alibi dropped": without("alibi"),
    "sinks dropped": without("sinks"),
    "segments dropped": without("segment_ids"),
    "documents dropped": without("cu_seqlens"),
    "scale forgotten": lambda case, options: {"scale": 1.0},
    "scale a little off": lambda case, options: {"scale": options["scale"] * 1.001},
    "causal, one key too many": shifted_causal(1),
    "causal, one key too few": shifted_causal(-1),
    "causal, aligned upper-left": upper_left,
    "window one wider": wider_window,
    "window swapped": swapped_window,
    "a tile skipped": skipped_tile,
    "the last key lost": last_key_lost,
    "padding sees padding": padding_sees_padding,
    "documents in one": one_document,
    "blocks one off": blocks_one_off,
    "half slopes": half_slopes,
    "softcap a little off": uncapped_by_a_hair,
}


class Faulty(ScaledDotProductAttention):
    """The op with options changed on the way."""

    plant = None

    def call(self, case, arrays, stream):
        options = self.options(case, arrays)
        options |= self.plant(case, options)
        outputs = mto.scaled_dot_product_attention(
            *arrays[:3], **options, return_lse=case.lse, stream=stream
        )
        return outputs if case.lse else (outputs,)


def finds(op, case):
    """Whether the checks of values and of gradients, each, refuse the op."""
    arrays = op.arrays(case)
    found = []
    outputs = op.call(case, arrays, BACKEND.device)
    pairs = [(outputs, op.expected(case, arrays))]
    cotangents = suite.random_like(outputs, case.rng(1))
    positions = op.differentiable

    def function(*values):
        return op.call(case, suite.replaced(arrays, positions, values), BACKEND.device)

    _, gradients = mx.vjp(function, [arrays[i] for i in positions], cotangents)
    pairs.append((gradients, op.expected_vjp(case, arrays, cotangents)))
    for actual, budgets in pairs:
        try:
            for a, budget in zip(actual, budgets, strict=True):
                budget.check(a, "planted")
            found.append(False)
        except AssertionError:
            found.append(True)
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name):
    """By every case that the fault concerns, but for dtypes in which it may be too small."""
    op_and_cases = []
    for case in CASES:
        op = Faulty(case)
        op.plant = FAULTS[name]
        options = op.options(case, op.arrays(case))
        changes = op.plant(case, options)
        if any(options.get(key) is not value for key, value in changes.items()):
            op_and_cases.append((op, case))
    assert op_and_cases, "no case has the option"
    by_values, by_gradients = zip(*(finds(op, case) for op, case in op_and_cases), strict=True)
    assert any(by_values) and any(by_gradients)
    fine = [i for i, (_, case) in enumerate(op_and_cases) if case.dtype == "float32"]
    missed = [str(op_and_cases[i][1]) for i in fine if not (by_values[i] or by_gradients[i])]
    # One key, or a window of everything, looks the same to some faults.
    assert len(missed) <= len(fine) // 2, missed


def spoilt(name, gradients, case):
    """Gradients with a fault of the backward pass."""
    q, k, v = gradients[:3]
    group = case.heads[0] // case.heads[1]
    return {
        "scale forgotten in d_q": [q / case.scale, k, v],
        "one head of a group lost in d_v": [q, k, v * (group - 1) / group],
        "a row lost in d_k": [q, mx.where(mx.arange(case.n_k)[:, None] == 3, 0, k), v],
    }[name]


@pytest.mark.parametrize(
    "name",
    ("scale forgotten in d_q", "one head of a group lost in d_v", "a row lost in d_k"),
)
def test_fault_of_the_backward_pass_is_found(name):
    case = cases.PLAIN
    op = ScaledDotProductAttention(case)
    arrays = op.arrays(case)
    outputs = op.call(case, arrays, BACKEND.device)
    cotangents = suite.random_like(outputs, case.rng(1))
    _, gradients = mx.vjp(lambda *a: op.call(case, a, BACKEND.device), arrays, cotangents)
    budgets = op.expected_vjp(case, arrays, cotangents)
    for gradient, budget in zip(gradients, budgets, strict=True):
        budget.check(gradient, "unspoilt")
    with pytest.raises(AssertionError, match="outside the error budget"):
        for gradient, budget in zip(spoilt(name, gradients, case), budgets, strict=True):
            budget.check(gradient, name)


def test_a_forgotten_cotangent_of_the_lse_is_found():
    case = cases.PLAIN.with_options("lse", "causal")
    op = ScaledDotProductAttention(case)
    arrays = op.arrays(case)
    outputs = op.call(case, arrays, BACKEND.device)
    cotangents = suite.random_like(outputs, case.rng(1))
    budgets = op.expected_vjp(case, arrays, cotangents)
    forgotten = [cotangents[0], mx.zeros_like(cotangents[1])]
    _, gradients = mx.vjp(lambda *a: op.call(case, a, BACKEND.device), arrays, forgotten)
    with pytest.raises(AssertionError, match="outside the error budget"):
        budgets[0].check(gradients[0], "d_q")
    np.testing.assert_array_less(0, np.abs(np.array(gradients[2])).max())
