"""The ops over every other format, as the checks want to know them."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import suite
from affine_cases import random_floats
from affine_ops import ARITHMETICS
from cases import Op, backend_in_use
from format_cases import FormatCase, random_packed
from tolerance import Budget, Exact, half_ulp, to_float64

import mlx_tensorops as mto
from mlx_tensorops.reference import dequantize, quantize, quantized_matmul
from mlx_tensorops.reference._arrays import sum_to_shape

# See conftest.py.
EMULATED_EVERY = {"test_forward": 1, "test_vjp": 12, "others": 1000}


def scales_of(packed):
    """Scales, or None where they are inside w."""
    return packed[1] if len(packed) > 1 else None


def definition_options(case: FormatCase) -> dict[str, object]:
    """What the reference takes: its group sizes are never left out."""
    return {**case.format, "group_size": case.block}


class Dequantize(Op):
    """``case.dtype`` is that of the output. ``n_inputs`` is 1 where scales are inside w."""

    name = "dequantize"

    def __init__(self, n_inputs=2, has_float_scales=False):
        self.inputs = ("w", "scales")[:n_inputs]
        self.differentiable = (1,) if has_float_scales else ()

    def arrays(self, case, variant=0):
        return random_packed(case, case.rng(variant))

    def call(self, case, arrays, stream):
        options = {**case.format, "dtype": getattr(mx, case.dtype)}
        packed = (arrays[0], scales_of(arrays))
        return (mto.dequantize(*packed, **options, force_fused=True, stream=stream),)

    def expected(self, case, arrays):
        options = {**definition_options(case), "dtype": getattr(mx, case.dtype)}
        return [Exact(dequantize.dequantize(arrays[0], scales_of(arrays), **options))]

    def linear(self, case, arrays):
        """The op as a budget, for its tangents."""

        def values(arithmetic):
            return dequantize.weights(*arrays, **definition_options(case), arithmetic=arithmetic)

        return Budget.of(values, np.abs(values(np.float64)), getattr(mx, case.dtype))

    def expected_jvp(self, case, arrays, tangents):
        return [self.linear(case, [arrays[0], *tangents])]

    def expected_vjp(self, case, arrays, cotangents):
        def gradient(cotangent, arithmetic=np.float64, arrays=arrays):
            options = {**definition_options(case), "arithmetic": arithmetic}
            return dequantize.vjp(*arrays, cotangent, **options)[0]

        if not self.differentiable:
            return []
        magnitude = gradient_magnitude(case, arrays, np.abs(to_float64(cotangents[0])))
        return [Budget.of(lambda a: gradient(*cotangents, a), magnitude, arrays[1].dtype)]

    def resized(self, case, n_rows):
        return case.with_w(*case.w[:-2], _whole_rows(case, n_rows), case.w[-1])

    def empty(self, case):
        yield case.with_w(*case.w[:-2], 0, case.w[-1])
        yield case.with_w(*case.w[:-1], 0)
        if case.mode != "bitnet":
            yield case.with_w(0, *case.w)


def _whole_rows(case: FormatCase, n_rows: int) -> int:
    return 4 * n_rows if case.mode == "bitnet" else n_rows


def gradient_magnitude(case, arrays, d_values):
    """Sums of the absolute terms of the gradient of the scales, given that of the values."""
    w, scales = arrays
    options = definition_options(case)
    # With the signs of the codes, all terms are positive.
    signs = np.sign(dequantize.weights(w, mx.ones_like(scales), **options))
    packed = dequantize.as_packed(
        w, scales, None, options["group_size"], None, options.get("global_scale")
    )
    return dequantize.parameter_gradients(packed, d_values * signs, case.mode)[0]


class QuantizedMatmul(Op):
    name = "quantized_matmul"

    def __init__(self, n_inputs=3, has_float_scales=False):
        self.inputs = ("x", "w", "scales")[:n_inputs]
        self.differentiable = (0, 2) if has_float_scales else (0,)

    def arrays(self, case, variant=0):
        rng = case.rng(variant)
        x = random_floats(rng, case.x, getattr(mx, case.dtype))
        return [x, *random_packed(case, rng)]

    def call(self, case, arrays, stream):
        x, w, *scales = arrays
        options = {"transpose": case.transpose, "force_fused": True, "stream": stream}
        return (mto.quantized_matmul(x, w, *scales, **case.format, **options),)

    @staticmethod
    def options(case):
        return {"transpose": case.transpose, **definition_options(case)}

    def dense(self, case, packed):
        return dequantize.weights(*packed, **definition_options(case))

    def expected(self, case, arrays):
        x, *packed = arrays

        def product(arithmetic):
            options = {**self.options(case), "arithmetic": arithmetic}
            return quantized_matmul.quantized_matmul(x, *packed, **options)

        dense = np.abs(self.dense(case, packed))
        dense = np.swapaxes(dense, -1, -2) if case.transpose else dense
        magnitude = np.matmul(np.abs(np.atleast_2d(to_float64(x))), dense)
        magnitude = magnitude[..., 0, :] if x.ndim == 1 else magnitude
        further = self.rounded_weights(case, arrays, case.transpose)
        return [Budget.of(product, magnitude, x.dtype, further)]

    def rounded_weights(self, case, arrays, transpose):
        """What it may cost that products of many rows on matrix units take weights of x's dtype."""
        x, *packed = arrays
        # The checks stack up to four cases.
        many = 4 * (x.size // x.shape[-1] if x.size else 0) > backend_in_use().few_rows
        if not many or x.dtype == mx.float32:
            return 0
        steps = half_ulp(x.dtype, self.dense(case, packed))
        steps = np.swapaxes(steps, -1, -2) if transpose else steps
        cost = np.matmul(np.abs(np.atleast_2d(to_float64(x))), steps)
        return cost[..., 0, :] if x.ndim == 1 else cost

    def expected_jvp(self, case, arrays, tangents):
        (by_x,) = self.expected(case, [tangents[0], *arrays[1:]])
        if len(tangents) == 1:
            return [by_x]
        (by_scales,) = self.expected(case, [arrays[0], arrays[1], tangents[1]])
        return [by_x + by_scales]

    def expected_vjp(self, case, arrays, cotangents):
        x, w, *scales = arrays
        parameters = (*scales, None, None)[:2]

        def gradients(arithmetic):
            options = {**self.options(case), "arithmetic": arithmetic}
            return quantized_matmul.vjp(x, w, *parameters, *cotangents, **options)[:2]

        results = {arithmetic: gradients(arithmetic) for arithmetic in ARITHMETICS}
        magnitudes = self.gradient_magnitudes(case, arrays, cotangents[0])
        further = self.rounded_weights(case, [*cotangents, *arrays[1:]], not case.transpose)
        # The gradient of an x that was broadcast is a product of float32.
        further = further if np.shape(further) == x.shape else 0
        return [
            Budget.of(
                lambda a, i=i: results[a][i],
                magnitudes[i],
                arrays[position].dtype,
                0 if i else further,
            )
            for i, position in enumerate(self.differentiable)
        ]

    def gradient_magnitudes(self, case, arrays, cotangent):
        """Sums of the absolute terms of the gradients of x and of float scales."""
        x, *packed = arrays
        outer, rows = np.abs(to_float64(cotangent)), np.abs(np.atleast_2d(to_float64(x)))
        outer = outer[..., None, :] if x.ndim == 1 else outer
        dense = np.abs(self.dense(case, packed))
        d_x = np.matmul(outer, dense if case.transpose else np.swapaxes(dense, -1, -2))
        d_x = sum_to_shape(d_x, rows.shape).reshape(x.shape)
        if len(self.differentiable) == 1:
            return [d_x]
        left, right = (outer, rows) if case.transpose else (rows, outer)
        d_dense = np.matmul(np.swapaxes(left, -1, -2), right)
        d_dense = sum_to_shape(d_dense, dense.shape)
        return [d_x, gradient_magnitude(case, packed, d_dense)]

    def resized(self, case, n_rows):
        return case if len(case.x) == 1 else case.with_x(*case.x[:-2], n_rows, case.x[-1])

    def empty(self, case):
        *batch, n, k = case.w if case.transpose else (*case.w[:-2], case.w[-1], case.w[-2])
        yield replace(
            case, x=(*case.x[:-1], 0), w=(*batch, n, 0) if case.transpose else (*batch, 0, n)
        )
        yield replace(case, w=(*batch, 0, k) if case.transpose else (*batch, k, 0))
        yield case.with_x(*case.x[:-2], 0, k)


class Quantize(Op):
    name = "quantize"
    inputs = ("w",)
    differentiable = ()
    float_outputs = (0, 1)

    def arrays(self, case, variant=0):
        return [random_floats(case.rng(variant), case.w, getattr(mx, case.dtype))]

    def call(self, case, arrays, stream):
        return mto.quantize(*arrays, **case.format, force_fused=True, stream=stream)

    def expected(self, case, arrays):
        return [Exact(a) for a in quantize.quantize(*arrays, **definition_options(case))]

    def resized(self, case, n_rows):
        return case.with_w(*case.w[:-2], _whole_rows(case, n_rows), case.w[-1])

    def empty(self, case):
        yield case.with_w(*case.w[:-2], 0, case.w[-1])


class WithoutDerivatives(suite.Checks):
    """Of an op that has none in this format: what is left of the checks, and the error."""

    test_vjp = test_jvp = test_vjp_is_the_adjoint_of_jvp = None
    test_vmap_composes = test_compiled_gradient = None

    def test_empty(self, case, backend):
        for empty in self.op.empty(case):
            arrays = suite.evaluated(self.op.arrays(empty))
            for output, expected in zip(
                self.run(empty, arrays, backend), self.op.expected(empty, arrays), strict=True
            ):
                expected.check(output, str(empty))

    def test_gradients_are_refused(self, case, backend):
        arrays = self.op.arrays(case)
        for position in range(len(self.op.inputs)):
            function = self.partial(case, backend, arrays, [position])
            refused = ("the packed w", "scales of dtype uint8")[position] + " must not be diff"
            cotangents = [mx.ones_like(output) for output in function(arrays[position])]
            with pytest.raises(ValueError, match=rf"^\[{self.op.name}\] {refused}"):
                mx.vjp(function, [arrays[position]], cotangents)
