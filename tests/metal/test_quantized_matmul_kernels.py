"""Every kernel of quantized_matmul in Metal, one by one, against float64."""

import itertools
import re

import numpy as np
import pytest
from apple_kernels import assert_within
from metal_quantized_matmul import (
    INCLUDE,
    TALL,
    WIDE,
    Operands,
    Product,
    Variant,
    few_rows,
    launch,
)

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

KINDS = ("float", "half", "bfloat16_t")
FORMATS = list(itertools.product((1, 2, 3, 4, 5, 6, 8), (32, 64, 128)))
LAYOUTS, ORDERS = ("m5", "grid8", "random"), ("forward", "reverse", "random")
ORIENTATIONS = pytest.mark.parametrize("transpose", (True, False), ids=("t", "n"))


def product_of(m, other, n_groups, bits, group_size, kinds, transpose):
    """`other` is the extent of w along which it is not packed."""
    n, k = (other, n_groups * group_size) if transpose else (n_groups * group_size, other)
    return Product(m, n, k, bits, group_size, kinds, transpose)


def kinds_of(i):
    """Of x, scales and biases: all 27 triples in turn."""
    return KINDS[i % 3], KINDS[i // 3 % 3], KINDS[i // 9 % 3]


def policies(i):
    """Each layout with each order in turn; an operand shorter than a static K is a fault."""
    return Policies(
        layout=LAYOUTS[i % 3], order=ORDERS[i // 3 % 3], seed=i, static_k="trap", fresh="nan"
    )


def check(variant, operands, choice, **options):
    y, result = launch(variant, operands, choice, **options)
    assert result.findings == ()
    rounds_weights = variant.kernel == "tiles" and operands.product.kinds[0] != "float"
    budget = operands.budget(rounds_weights)
    assert_within(y, operands.exact, budget, operands.product.kinds[0])
    return y


@ORIENTATIONS
@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_few_rows(bits, group_size, transpose):
    i = FORMATS.index((bits, group_size))
    m, other, n_groups = (1, 2, 3, 5, 11, 16, 32)[i % 7], (17, 70, 33)[i % 3], (1, 3, 5, 9)[i % 4]
    product = product_of(m, other, n_groups, bits, group_size, kinds_of(i), transpose)
    operands = Operands(product)
    for order in ORDERS:
        check(few_rows(m, transpose), operands, Policies(order=order, seed=i))


@ORIENTATIONS
@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_tiles(bits, group_size, transpose):
    i = FORMATS.index((bits, group_size))
    m, other, n_groups = (33, 64, 70, 96)[i % 4], (17, 96, 33)[i % 3], (1, 3, 2)[i % 3]
    product = product_of(m, other, n_groups, bits, group_size, kinds_of(i + 4), transpose)
    operands = Operands(product)
    for j in range(3):
        check((TALL, WIDE)[i % 2], operands, policies(4 * j + i))


@ORIENTATIONS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("variant", (TALL, WIDE), ids=("tall", "wide"))
def test_tiles_under_every_policy(variant, layout, order, transpose):
    product = product_of(70, 97, 3, 4, 32, ("half", "float", "half"), transpose)
    choice = Policies(layout=layout, order=order, seed=7, static_k="trap")
    first = check(variant, Operands(product), choice)
    again = check(variant, Operands(product), Policies())
    assert (first == again).all(), "sums depend on layout or order"


TAILS = (1, 17, 33, 257)


@ORIENTATIONS
@pytest.mark.parametrize("m", TAILS)
@pytest.mark.parametrize("other", TAILS)
def test_tails(m, other, transpose):
    """Of rows, and of the axis along which w is not packed: n, or k; groups of one and of many."""
    for i, n_groups in enumerate((1, 5)):
        product = product_of(m, other, n_groups, 4, 32, ("half",) * 3, transpose)
        operands = Operands(product)
        # More rows than a variant holds are several rows of threadgroups.
        for variant in (TALL, WIDE, few_rows(min(m, 32), transpose)):
            check(variant, operands, policies(TAILS.index(m) + 2 * i))


@ORIENTATIONS
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_among_any_rows(kind, transpose):
    product = product_of(32, 75, 5, 3, 64, (kind, kind, "float"), transpose)
    operands = Operands(product)
    together, _ = launch(few_rows(32, transpose), operands)
    x = operands.x
    for n_rows in (1, 2, 3, 4, 7, 8, 13, 16, 31):
        for start in (0, 32 - n_rows):
            operands.product = product.with_rows(n_rows)
            operands.x = np.ascontiguousarray(x[start : start + n_rows])
            some, _ = launch(few_rows(n_rows, transpose), operands, Policies(order="random"))
            assert (some.view(np.uint8) == together[start : start + n_rows].view(np.uint8)).all()


def test_float32_is_multiplied_as_float32_unless_asked():
    """A GPU may cut float32 operands to 11 bits where a product is relaxed, and only there."""
    operands = Operands(Product(40, 40, 128))
    cut = Policies(truncate_relaxed=True)
    check(TALL, operands, cut)
    relaxed = Variant("tiles", 64, 32, relaxed=True)
    y, _ = launch(relaxed, operands, cut)
    error = np.abs(y - operands.exact)
    magnitude = np.abs(operands.x).astype(np.float64) @ np.abs(operands.weights)
    assert (error > operands.budget(False)).any()
    assert (error <= 2 * 2.0**-10 * magnitude + operands.budget(False)).all()


TRACED = [
    (few_rows(1, True), 1, True),
    (few_rows(7, True), 7, True),
    (few_rows(32, True), 29, True),
    (few_rows(2, False), 2, False),
    (few_rows(32, False), 30, False),
    (TALL, 70, True),
    (WIDE, 70, True),
    (TALL, 70, False),
    (WIDE, 70, False),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("variant", "m", "transpose"), TRACED, ids=str)
def test_no_races_and_no_byte_outside(variant, m, transpose, order):
    product = product_of(m, 41, 3, 3, 64, ("half", "float", "bfloat16_t"), transpose)
    layout = LAYOUTS[ORDERS.index(order)]
    for guard in ("begin", "end"):
        choice = Policies(order=order, layout=layout, seed=3, guard=guard)
        check(variant, Operands(product), choice, trace=True)


MANY = product_of(70, 75, 3, 4, 32, KINDS, False)
FEW = product_of(8, 75, 3, 4, 32, KINDS, False)
SHARED = product_of(16, 75, 10, 4, 32, KINDS, True)
# Barriers without which a kernel must be found wrong, by the text that follows them.
BARRIERS = {
    "words are there": (MANY, "simdgroup_barrier", "mto::decode(weights, tile, run);\n    simd"),
    "words are used": (MANY, "simdgroup_barrier", "XTile x_tile"),
    "tail of x is there": (MANY, "threadgroup_barrier", "if (active) {"),
    "words of the tail are there": (
        MANY, "simdgroup_barrier", "mto::decode(weights, tile, run);\n      tensor",
    ),
    "x is there": (SHARED, "threadgroup_barrier", "}\n      for (int r = 0"),
    "x is used": (SHARED, "threadgroup_barrier", "const uint x_col"),
    "parts are there": (FEW, "threadgroup_barrier", "if (thread_in_group"),
    "parts are used": (FEW, "threadgroup_barrier", "}\n}"),
}  # fmt: skip


@pytest.mark.parametrize("name", BARRIERS)
def test_every_barrier_is_needed(name):
    product, barrier, follows = BARRIERS[name]
    variant = TALL if product is MANY else few_rows(product.m, product.transpose)
    text = variant.file.read_text()
    pattern = rf"{barrier}\(mem_flags::mem_threadgroup\);(?=[^\n]*\n\s*{re.escape(follows)})"
    edited, n = re.subn(pattern, "", text)
    assert n == 1
    choice = Policies(order="reverse")
    _, result = launch(variant, Operands(product), choice, trace=True, edited=edited, check=False)
    assert "threadgroup_race" in {finding.kind for finding in result.findings}


@ORIENTATIONS
def test_address_spaces(transpose):
    product = product_of(33, 33, 3, 5, 64, KINDS, transpose)
    for variant in (TALL, WIDE, few_rows(8, transpose), few_rows(32, transpose)):
        complaints = emulator.check(
            variant.file.read_text(),
            include_dirs=INCLUDE,
            instantiations={"kernel": variant.function(product)},
        )
        assert complaints == ()
