"""The generic checks and the error budget, each against a fault that it has to find."""

import itertools
import threading

import mlx.core as mx
import numpy as np
import pytest
import suite
from affine_cases import AffineCase, random_floats, random_quantized
from cases import BACKENDS, Op, fused_only
from tolerance import Budget, assert_same_bits, half_ulp, to_float64

from mlx_tensorops import _ext
from mlx_tensorops.reference import quantized_matmul as reference

BACKEND = BACKENDS["cpu"]
CASE = AffineCase(w=(4, 64))


TWICE = 2 * mx.eye(64)
mx.eval(TWICE)


def doubled(x):
    """2 x, by an op that mx.compile does not fuse with others."""
    return x @ TWICE


class Doubling(Op):
    """y = 2 x, whose faults are planted by subclasses."""

    name = "doubling"
    inputs = ("x",)
    differentiable = (0,)

    def arrays(self, case, variant=0):
        return [random_floats(case.rng(variant), case.w, mx.float32)]

    def call(self, case, arrays, stream):
        return (doubled(arrays[0]),)

    def doubled(self, x):
        exact = 2 * to_float64(x)
        return [Budget(exact, half_ulp(mx.float32, exact), mx.float32)]

    def expected(self, case, arrays):
        return self.doubled(arrays[0])

    def expected_jvp(self, case, arrays, tangents):
        return self.doubled(tangents[0])

    def expected_vjp(self, case, arrays, cotangents):
        return self.doubled(cotangents[0])

    def resized(self, case, n_rows):
        return case.with_w(n_rows, case.w[-1])

    def empty(self, case):
        yield case.with_w(0, case.w[-1])


def last_value_off(x):
    y = 2 * x
    y[-1, -1] += 1e-3
    return y


def computed_in_16_bits(x):
    return (2 * x.astype(mx.bfloat16)).astype(mx.float32)


def input_written(x):
    y = mx.contiguous(2 * x)
    x[0] = 0
    return y


calls = itertools.count()


def different_each_time(x):
    return doubled(x) + 1e-3 * next(calls)


def with_derivative(**rules):
    @mx.custom_function
    def function(x):
        return 2 * x

    for rule, definition in rules.items():
        getattr(function, rule)(definition)
    return function


def strides_ignored(x):
    mx.eval(x)
    return 2 * x + (not memoryview(x).c_contiguous)


def alignment_assumed(x):
    mx.eval(x)
    view = memoryview(x)
    return 2 * x + (view.c_contiguous and np.frombuffer(view, np.float32).ctypes.data % 16 > 0)


def empty_refused(x):
    if x.size == 0:
        raise RuntimeError("empty")
    return 2 * x


def other_on_threads(x):
    return 2 * x + (threading.current_thread() is not threading.main_thread())


def shape_kept(x):
    return 2 * x + mx.zeros(x.shape)


FAULTS = {
    "test_forward": (last_value_off, computed_in_16_bits, input_written, different_each_time),
    "test_vjp": (with_derivative(vjp=lambda x, c, y: 3 * c),),
    "test_jvp": (with_derivative(jvp=lambda x, t: 3 * t),),
    "test_vjp_is_the_adjoint_of_jvp": (
        with_derivative(vjp=lambda x, c, y: 3 * c, jvp=lambda x, t: 2 * t),
    ),
    "test_vmap_is_stacking": (with_derivative(vmap=lambda x, axis: (2 * x + 1e-6, axis)),),
    "test_vmap_composes": (with_derivative(vjp=lambda x, c, y: c),),
    "test_compile": (shape_kept,),
    "test_compiled_gradient": (with_derivative(vjp=lambda x, c, y: 2 * c + 1e-6),),
    "test_layouts": (strides_ignored, alignment_assumed),
    "test_empty": (empty_refused,),
    "test_streams_and_threads": (other_on_threads,),
    "test_equal_calls_are_merged": (different_each_time,),
}


def run(check, call, monkeypatch):
    class Faulty(Doubling):
        def call(self, case, arrays, stream):
            return (call(arrays[0]),)

    class Checks(suite.Checks):
        op = Faulty()

    monkeypatch.setattr(_ext, "reset_counters", lambda: None)
    monkeypatch.setattr(_ext, "counters", lambda: [("doubling", "cpu", "fused", 1)])
    getattr(Checks(), check)(CASE, BACKEND)


@pytest.mark.parametrize("check", FAULTS)
def test_sound_op_passes(check, monkeypatch):
    run(check, doubled, monkeypatch)


@pytest.mark.parametrize(
    ("check", "fault"), [(check, fault) for check, faults in FAULTS.items() for fault in faults]
)
def test_fault_is_found(check, fault, monkeypatch):
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        run(check, fault, monkeypatch)


@pytest.mark.parametrize("seen", ([], [("doubling", "cpu", "x of dtype int32", 1)]))
def test_fallback_is_found(seen, monkeypatch):
    monkeypatch.setattr(_ext, "reset_counters", lambda: None)
    monkeypatch.setattr(_ext, "counters", lambda: seen)
    with (
        pytest.raises(AssertionError, match="doubling ran as"),
        fused_only(Doubling(), BACKEND),
    ):
        pass


def test_every_check_has_a_fault():
    assert set(FAULTS) == {name for name in vars(suite.Checks) if name.startswith("test_")}


class TestBudget:
    case = AffineCase(w=(16, 2048), dtype="bfloat16", scales="bfloat16", x=(4, 2048))

    def setup_method(self):
        rng = self.case.rng()
        self.x = random_floats(rng, self.case.x, mx.bfloat16)
        self.quantized = random_quantized(self.case, rng)

        def product(*arrays, arithmetic=np.float64):
            return reference.quantized_matmul(*arrays, arithmetic=arithmetic)

        w, *parameters = self.quantized
        magnitude = product(mx.abs(self.x), w, *map(mx.abs, parameters))
        self.budgets = {
            dtype: Budget.of(
                lambda a: product(self.x, *self.quantized, arithmetic=a), magnitude, dtype
            )
            for dtype in (mx.float32, mx.bfloat16)
        }

    def rejects(self, values, dtype):
        with pytest.raises(AssertionError, match="outside the error budget"):
            self.budgets[dtype].check(mx.array(values).astype(dtype), "planted")

    def test_the_exact_result_fits(self):
        for dtype, budget in self.budgets.items():
            budget.check(mx.array(budget.exact.astype(np.float32)).astype(dtype), "exact")

    def test_a_lost_term_does_not(self):
        for k in (0, 1023, 2047):
            x = mx.array(self.x)
            x[:, k] = 0
            lost = reference.quantized_matmul(x, *self.quantized).astype(np.float32)
            for dtype in self.budgets:
                self.rejects(lost, dtype)

    def test_a_sum_in_16_bits_does_not(self):
        dense = mx.array(reference.weights(*self.quantized).astype(np.float32)).astype(mx.bfloat16)
        total = mx.zeros((4, 16), mx.bfloat16)
        for k in range(2048):
            total = total + self.x[:, k, None] * dense[:, k]
        self.rejects(np.array(total.astype(mx.float32)), mx.bfloat16)

    def test_an_ulp_off_does_not(self):
        exact = self.budgets[mx.bfloat16].exact.astype(np.float32)
        self.rejects(exact * (1 + 2.0**-7), mx.bfloat16)
        self.rejects(exact + np.abs(exact).max() * 2.0**-14, mx.float32)

    def test_a_nan_does_not(self):
        exact = self.budgets[mx.float32].exact.astype(np.float32)
        exact[2, 3] = np.nan
        self.rejects(exact, mx.float32)

    def test_another_shape_or_dtype_does_not(self):
        budget = self.budgets[mx.float32]
        with pytest.raises(AssertionError):
            budget.check(mx.array(budget.exact[:1].astype(np.float32)), "shape")
        with pytest.raises(AssertionError):
            budget.check(mx.array(budget.exact.astype(np.float32)).astype(mx.bfloat16), "dtype")


def test_equal_values_of_other_bits_differ():
    with pytest.raises(AssertionError):
        assert_same_bits(mx.array([0.0]), mx.array([-0.0]), "zeros")
    assert_same_bits(mx.array([float("nan")]), -mx.array([float("nan")]), "NaN")
