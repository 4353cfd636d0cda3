"""Apple's kernels for matrix units under every policy, over shapes: what depends on which.

A kernel that fills cooperative tensors by slot is right under the layout of M5 only, and the tests
say so: under others it has to be wrong.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import pytest
from apple_nax import run_attention, run_fp_quantized, run_gemm, run_quantized, run_thin

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

LAYOUTS = [Policies(layout="m5"), Policies(layout="grid8")]
LAYOUTS += [Policies(layout="random", seed=seed) for seed in (1, 2, 3)]
ORDERS = [("forward", 0), ("reverse", 0), ("random", 4), ("random", 5)]


@dataclass(frozen=True)
class Case:
    """A launch, given the fixture that compiles and the policies.

    any_layout: whether the kernel takes coordinates from the tensor, not from the layout of M5.
    short_k: whether its last operand in memory is shorter than the static K that it promises.
    """

    name: str
    run: Callable
    arguments: tuple
    any_layout: bool = False
    short_k: bool = False

    def __str__(self):
        shape = next(a for a in self.arguments if isinstance(a, tuple) and len(a) > 2)
        rest = [str(a) for a in self.arguments if a is not shape and not isinstance(a, tuple)]
        return "-".join([self.name, "x".join(map(str, shape)), *rest])

    def __call__(self, apple, policies):
        return self.run(apple, *self.arguments, policies=policies)


GEMM_SHAPES = [(64, 64, 64), (100, 70, 90), (1, 17, 31), (65, 129, 300)]
GEMM = [
    Case(f"gemm-{'nt'[left]}{'nt'[right]}", run_gemm, (kind, (left, right), shape))
    for kind, (left, right) in zip(
        ("float", "half", "bfloat16_t", "half"),
        itertools.product((False, True), repeat=2),
        strict=True,
    )
    for shape in GEMM_SHAPES
]
THIN = [
    Case("thin", run_thin, (*row, shape), any_layout=True, short_k=shape[2] % 64 > 0)
    for row in (("half", True, 1), ("float", False, 2), ("bfloat16_t", True, 2))
    for shape in ((24, 70, 96), (16, 128, 128), (3, 65, 200))
]
QUANTIZED = [
    Case("qmm", run_quantized, (kind, bits, group, shape, transposed))
    for kind, bits, group in (("float", 4, 64), ("half", 3, 32), ("bfloat16_t", 8, 128))
    for shape in ((40, 128, 128), (64, 128, 256))
    for transposed in (True, False)
]
FP_QUANTIZED = [
    Case("fp_qmm", run_fp_quantized, (kind, bits, group, shape))
    for kind, bits, group in (("float", 4, 32), ("half", 8, 32), ("bfloat16_t", 4, 16))
    for shape in ((40, 70, 128), (9, 64, 64))
]
ATTENTION = [
    Case("attention", run_attention, (kind, shape, keys, causal, masked, True))
    for kind, shape, keys, causal, masked in (
        ("float", (1, 1, 1, 128, 64), 128, False, ""),
        ("half", (1, 2, 1, 100, 64), 177, False, ""),
        ("half", (2, 2, 2, 70, 64), 70, True, ""),
        ("float", (1, 2, 1, 40, 64), 90, True, "bool"),
        ("half", (1, 2, 1, 65, 64), 33, False, "float"),
        ("bfloat16_t", (1, 1, 1, 33, 128), 65, False, "bool"),
    )
]
CASES = [*GEMM, *THIN, *QUANTIZED, *FP_QUANTIZED, *ATTENTION]
FAMILIES = [cases[-1] for cases in (GEMM, THIN, QUANTIZED, FP_QUANTIZED, ATTENTION)]
# About the host, or about arguments that Apple's kernels do not have (test_tensor_handles.py).
NO_CHOICE_OF_A_TENSOR = {"stack_kib", "time_limit_ms", "subscript", "handle_extents"}
CHOICES = {
    "accumulate": Policies(multiply="accumulate"),
    "zero": Policies(fresh="zero"),
    "incompatible": Policies(compatible=False),
    "row_owner": Policies(row_owner=True),
    "guard_begin": Policies(guard="begin"),
    "static_k_trap": Policies(static_k="trap"),
}


def pytest_generate_tests(metafunc):
    """With --full every case in every layout and order, else one a kernel, one order a layout."""
    full = metafunc.config.getoption("--full")
    if "order" in metafunc.fixturenames:
        layouts = [(f"{p.layout}{p.seed}", p) for p in LAYOUTS]
        orders = [(f"{name}{seed}", (name, seed)) for name, seed in ORDERS]
        pairs = itertools.product(layouts, orders)
        if not full:
            pairs = zip(layouts, itertools.cycle(orders))  # noqa: B905
        rows = [pytest.param(p, o, id=f"{i}-{j}") for (i, p), (j, o) in pairs]
        metafunc.parametrize(("layout", "order"), rows)
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES if full else FAMILIES, ids=str)


def test_layouts_and_orders(apple, case, layout, order):
    seed = order[1] or layout.seed
    outcome = case(apple, replace(layout, order=order[0], seed=seed))
    if case.any_layout or layout.layout == "m5":
        outcome.check()
    else:
        assert outcome.is_wrong()


@pytest.mark.parametrize("choice", CHOICES)
def test_one_other_choice(apple, case, choice):
    if choice == "static_k_trap" and case.short_k:
        # It relies on masks: whoever lets the trap stand for Metal's rule says that it is wrong.
        with pytest.raises(emulator.Fault, match="static_k_extents"):
            case(apple, CHOICES[choice])
    else:
        case(apple, CHOICES[choice]).check()


def test_all_other_choices_at_once(apple, case):
    policies = Policies(
        order="reverse", multiply="accumulate", fresh="zero", compatible=False, row_owner=True
    )
    case(apple, policies).check()


def test_truncated_inputs(apple, case):
    """relaxed_precision, which MLX asks for, may cut float inputs to 11 significant bits."""
    outcome = case(apple, Policies(truncate_relaxed=True))
    if outcome.kind == "float":
        with pytest.raises(AssertionError, match="largest error"):
            outcome.check()
        outcome = replace(outcome, sums=4 * 2.0**-11)
    outcome.check()


def test_every_policy_has_a_place_here():
    swept = {"order", "seed", "layout", "truncate_relaxed"}
    for policies in CHOICES.values():
        swept |= {f.name for f in fields(Policies) if getattr(policies, f.name) != f.default}
    assert set(Policies.__dataclass_fields__) - swept <= NO_CHOICE_OF_A_TENSOR
