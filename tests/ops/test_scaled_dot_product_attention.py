"""scaled_dot_product_attention: its cases through the generic checks, and pairs of options."""

import attention_cases as cases
import mlx.core as mx
import numpy as np
import pytest
import suite
from attention_ops import ScaledDotProductAttention

KERNELS = ("cpu", "metal")
SINGLE = cases.single_cases()
FURTHER = cases.shape_cases() + cases.further_cases()
PAIRS = cases.pair_cases()
N_RANDOM = 3000


class OfCase:
    """The op of a case: which inputs it has is the case's affair."""

    @pytest.fixture(autouse=True)
    def _op(self, case):
        self.op = ScaledDotProductAttention(case)

    run = suite.Checks.run
    function = suite.Checks.function
    partial = suite.Checks.partial
    assert_same = suite.Checks.assert_same


class TestScaledDotProductAttention(OfCase, suite.Checks):
    cases = SINGLE


class Forward(OfCase):
    test_forward = suite.Checks.test_forward

    def test_all_gradients(self, case, backend):
        arrays = self.op.arrays(case)
        positions = self.op.differentiable
        function = self.partial(case, backend, arrays, positions)
        outputs = function(*(arrays[i] for i in positions))
        cotangents = suite.random_like(outputs, case.rng(1))
        _, gradients = mx.vjp(function, [arrays[i] for i in positions], cotangents)
        budgets = self.op.expected_vjp(case, arrays, cotangents)
        for i, gradient, budget in zip(positions, gradients, budgets, strict=True):
            budget.check(gradient, f"gradient of {self.op.inputs[i]}")


@pytest.mark.parametrize("case", FURTHER, ids=str)
class TestShapesAndValues(Forward):
    pass


@pytest.mark.parametrize("case", PAIRS, ids=str)
class TestPairsOfOptions(Forward):
    pass


@pytest.mark.parametrize("case", SINGLE[::2] + FURTHER[::2], ids=str)
def test_every_instruction_set(case, backend, isa):
    check = Forward()
    check.op = ScaledDotProductAttention(case)
    check.test_forward(case, backend)
    check.test_all_gradients(case, backend)


def random_cases():
    return [cases.random_case(np.random.default_rng([5, i])) for i in range(N_RANDOM)]


@pytest.mark.full
@pytest.mark.parametrize("block", range(30))
def test_random_combinations(block, backend):
    """A seeded sweep over all options at once."""
    for case in random_cases()[block::30]:
        check = Forward()
        check.op = ScaledDotProductAttention(case)
        try:
            check.test_forward(case, backend)
            check.test_all_gradients(case, backend)
        except Exception as error:
            raise AssertionError(f"{case!r}, seed {case.seed}: {error}") from error


def test_cases_differ():
    every = [*SINGLE, *FURTHER, *PAIRS]
    assert len({str(case) for case in every}) == len(every)
