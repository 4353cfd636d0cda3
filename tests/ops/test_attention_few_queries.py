"""scaled_dot_product_attention of few queries, as in decoding: kernels of their own on Metal."""

from dataclasses import replace

import attention_cases as cases
import pytest
import suite
from attention_cases import AttentionCase
from attention_ops import ScaledDotProductAttention

KERNELS = ("metal",)
DTYPES = ("float32", "bfloat16", "float16")
# Queries, and heads of queries and of keys: 1 to 32 rows a KV head.
SHAPES = ((1, (4, 2)), (4, (3, 3)), (1, (6, 1)), (8, (4, 1)), (3, (5, 1)), (2, (16, 1)))


def option_cases():
    """Every option, with few keys and with so many that they are split."""
    result = []
    for i, case in enumerate(cases.single_cases()):
        n_q, heads = SHAPES[i % len(SHAPES)]
        small = replace(case, n_q=n_q, heads=heads, dtype=DTYPES[i % 3])
        result += [small, replace(small, n_k=600 + i, dtype=DTYPES[(i + 1) % 3], batch=1)]
    return result


def dimension_cases():
    dims = [(40, 40), (72, 72), (64, 128), (96, 64), (128, 128), (192, 128), (256, 256)]
    dims += [(512, 512), (576, 512), (1, 3), (7, 33), (130, 6)]
    plain = AttentionCase(n_q=2, n_k=37, batch=1, mask="causal", lse=True)
    return [replace(plain, d=d, dtype=DTYPES[i % 3]) for i, d in enumerate(dims)]


@pytest.mark.parametrize("case", option_cases() + dimension_cases(), ids=str)
class TestFewQueries:
    @pytest.fixture(autouse=True)
    def _op(self, case):
        self.op = ScaledDotProductAttention(case)

    run = suite.Checks.run
    assert_same = suite.Checks.assert_same
    test_forward = suite.Checks.test_forward
