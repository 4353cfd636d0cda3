"""Bytes that our Metal kernels move, against what they must, and against MLX's kernels."""

import pytest
from metal_costs import bound, mlx_tiles, mlx_vectors, mlx_wide, ours
from metal_quantized_matmul import Operands, Product

KINDS = ("float", "half", "bfloat16_t")
FORMATS = [(1, 128), (2, 64), (3, 32), (4, 64), (5, 32), (6, 128), (8, 64)]
MARGIN = 1.15
ORIENTATIONS = pytest.mark.parametrize("transpose", (True, False), ids=("t", "n"))


def operands(m, n, k, bits, group_size, kind, transpose=True):
    return Operands(Product(m, n, k, bits, group_size, (kind,) * 3, transpose))


@ORIENTATIONS
@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_many_rows(bits, group_size, transpose):
    """Weights once a row of tiles, x once a column, y once; no more than MLX on the same case."""
    i = FORMATS.index((bits, group_size))
    m, kind = (33, 96, 128)[i % 3], KINDS[i // 2 % 3]
    # MLX's kernel for a matrix that is not transposed is for groups of 64 at least.
    group_size = max(group_size, 64) if not transpose else group_size
    of = operands(m, 128, 256, bits, group_size, kind, transpose)
    cost = ours(of)
    assert "tiles" in cost.kernel
    assert cost.total <= MARGIN * bound(of, cost.kernel)
    assert cost.total <= mlx_tiles(of).total
    assert 2 * m * 128 * 256 <= cost.matrix_flops <= 2 * -(-m // 32) * 32 * 128 * 256 * 64 // 32


@ORIENTATIONS
@pytest.mark.parametrize("n", (32, 96, 160))
def test_many_rows_at_the_edges(n, transpose):
    of = operands(70, n, 160, 4, 32, "half", transpose)
    cost = ours(of)
    assert cost.total <= MARGIN * bound(of, cost.kernel)


@ORIENTATIONS
@pytest.mark.parametrize(
    ("m", "bits", "group_size"),
    [*((m, 4, 64) for m in (1, 2, 3, 5, 9, 16, 32)), *((4, *form) for form in FORMATS)],
)
def test_few_rows(m, bits, group_size, transpose):
    """Weights once for all rows, however many; x once a column of tiles."""
    of = operands(m, 128, 512, bits, group_size, KINDS[(m + bits) % 3], transpose)
    cost = ours(of)
    assert "few_rows" in cost.kernel
    assert cost.total <= MARGIN * bound(of, cost.kernel)
    weights = of.w.nbytes + of.scales.nbytes + of.biases.nbytes
    assert weights <= cost.weights <= MARGIN * weights
    assert cost.n_bytes["w"] == of.w.nbytes


@ORIENTATIONS
def test_rows_of_mlx_read_weights_again_and_again(transpose):
    """What the few-row kernels are for: MLX's vector kernels read them once a row, or five rows."""
    of = operands(8, 128, 512, 4, 64, "half", transpose)
    assert mlx_vectors(of).weights >= 7 * ours(of).weights
    if transpose:
        assert mlx_wide(of).weights >= 1.9 * ours(of).weights


def test_the_bound_can_be_missed():
    of = operands(8, 128, 512, 4, 64, "half")
    assert mlx_vectors(of).total > MARGIN * bound(of, ours(of).kernel)
