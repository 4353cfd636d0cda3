"""The ops over the affine format, as the checks want to know them."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
from affine_cases import random_floats, random_quantized
from cases import Op, backend_in_use
from tolerance import Budget, Exact, half_ulp, to_float64

import mlx_tensorops as mto
from mlx_tensorops.reference import dequantize, quantize, quantized_matmul

ARITHMETICS = (np.float64, np.float32)


def absolute(arrays):
    """The inputs whose result is the sum of the absolute values of a linear op's terms."""
    return [a if a.dtype == mx.uint32 else mx.abs(a) for a in arrays]


class Quantize(Op):
    name = "quantize"
    inputs = ("w",)
    differentiable = (0,)
    float_outputs = (1, 2)

    def arrays(self, case, variant=0):
        return [random_floats(case.rng(variant), case.w, case.dtypes[0])]

    def call(self, case, arrays, stream):
        return mto.quantize(*arrays, **case.format, force_fused=True, stream=stream)

    def expected(self, case, arrays):
        return [Exact(output) for output in quantize.quantize(*arrays, **case.format)]

    def expected_jvp(self, case, arrays, tangents):
        def derivative(arithmetic):
            return quantize.jvp(*arrays, *tangents, **case.format, arithmetic=arithmetic)

        steps = np.abs(to_float64(tangents[0]))
        slopes = quantize.derivatives(*arrays, **case.format, arithmetic=np.float64)
        magnitudes = [(np.abs(s) * steps.reshape(s.shape)).sum(-1) for s in slopes]
        return [
            Budget.of(lambda a, i=i: derivative(a)[i], magnitude, case.dtypes[0])
            for i, magnitude in enumerate(magnitudes)
        ]

    def expected_vjp(self, case, arrays, cotangents):
        def gradient(arithmetic):
            return quantize.vjp(*arrays, *cotangents, **case.format, arithmetic=arithmetic)

        slopes = quantize.derivatives(*arrays, **case.format, arithmetic=np.float64)
        vectors = (np.abs(to_float64(c))[..., None] for c in cotangents)
        terms = (np.abs(slope) * vector for slope, vector in zip(slopes, vectors, strict=True))
        return [Budget.of(gradient, sum(terms).reshape(case.w), case.dtypes[0])]

    def resized(self, case, n_rows):
        return case.with_w(*case.w[:-2], n_rows, case.w[-1])

    def empty(self, case):
        yield case.with_w(*case.w[:-2], 0, case.w[-1])
        yield case.with_w(*case.w[:-1], 0)
        yield case.with_w(0, *case.w)


class Dequantize(Op):
    """``case.dtype`` is that of the output; empty leaves it to scales and biases."""

    name = "dequantize"
    inputs = ("w", "scales", "biases")
    differentiable = (1, 2)

    def arrays(self, case, variant=0):
        return random_quantized(case, case.rng(variant))

    @staticmethod
    def options(case):
        return {**case.format, "dtype": getattr(mx, case.dtype) if case.dtype else None}

    def call(self, case, arrays, stream):
        options = self.options(case)
        return (mto.dequantize(*arrays, **options, force_fused=True, stream=stream),)

    def expected(self, case, arrays):
        return [Exact(dequantize.dequantize(*arrays, **self.options(case)))]

    def linear(self, case, arrays):
        """The op as a budget: exact for expected(), within it for its tangents."""
        absolute = [arrays[0], *map(mx.abs, arrays[1:])]
        return Budget.of(
            lambda arithmetic: dequantize.weights(*arrays, **case.format, arithmetic=arithmetic),
            dequantize.weights(*absolute, **case.format),
            getattr(mx, case.dtype) if case.dtype else mx.result_type(*arrays[1:]),
        )

    def expected_jvp(self, case, arrays, tangents):
        return [self.linear(case, [arrays[0], *tangents])]

    def expected_vjp(self, case, arrays, cotangents):
        def gradients(cotangent, arithmetic=np.float64):
            return dequantize.vjp(*arrays[:2], cotangent, **case.format, arithmetic=arithmetic)

        magnitudes = gradients(mx.abs(cotangents[0]))
        return [
            Budget.of(lambda a, i=i: gradients(*cotangents, a)[i], magnitudes[i], array.dtype)
            for i, array in enumerate(arrays[1:])
        ]

    def resized(self, case, n_rows):
        return case.with_w(*case.w[:-2], n_rows, case.w[-1])

    def empty(self, case):
        yield case.with_w(*case.w[:-2], 0, case.w[-1])
        yield case.with_w(*case.w[:-1], 0)
        yield case.with_w(0, *case.w)


class QuantizedMatmul(Op):
    name = "quantized_matmul"
    inputs = ("x", "w", "scales", "biases")
    differentiable = (0, 2, 3)

    def arrays(self, case, variant=0):
        rng = case.rng(variant)
        return [random_floats(rng, case.x, case.dtypes[0]), *random_quantized(case, rng)]

    def call(self, case, arrays, stream):
        options = {"transpose": case.transpose, "force_fused": True, "stream": stream}
        return (mto.quantized_matmul(*arrays, **case.format, **options),)

    @staticmethod
    def options(case):
        return {"transpose": case.transpose, **case.format}

    def expected(self, case, arrays):
        def product(arrays, arithmetic=np.float64):
            options = {**self.options(case), "arithmetic": arithmetic}
            return quantized_matmul.quantized_matmul(*arrays, **options)

        magnitude = product(absolute(arrays))
        further = self.rounded_weights(case, arrays, case.transpose)
        return [Budget.of(lambda a: product(arrays, a), magnitude, arrays[0].dtype, further)]

    @staticmethod
    def rounded_weights(case, arrays, transpose):
        """What it may cost that products of many rows on matrix units take weights of x's dtype."""
        x, w, scales, biases = arrays
        # The checks stack up to four cases.
        many = 4 * (x.size // x.shape[-1] if x.size else 0) > backend_in_use().few_rows
        if not many or x.dtype == mx.float32:
            return 0
        steps = half_ulp(x.dtype, dequantize.weights(w, scales, biases, **case.format))
        steps = np.swapaxes(steps, -1, -2) if transpose else steps
        cost = np.matmul(np.abs(np.atleast_2d(to_float64(x))), steps)
        return cost[..., 0, :] if x.ndim == 1 else cost

    def expected_jvp(self, case, arrays, tangents):
        x, w, scales, biases = arrays
        x_tangent, scales_tangent, biases_tangent = tangents
        (by_x,) = self.expected(case, [x_tangent, w, scales, biases])
        (by_parameters,) = self.expected(case, [x, w, scales_tangent, biases_tangent])
        return [by_x + by_parameters]

    def expected_vjp(self, case, arrays, cotangents):
        def gradients(arrays, arithmetic=np.float64):
            return quantized_matmul.vjp(*arrays, **self.options(case), arithmetic=arithmetic)

        inputs = [*arrays, *cotangents]
        results = {arithmetic: gradients(inputs, arithmetic) for arithmetic in ARITHMETICS}
        magnitudes = gradients(absolute(inputs))
        further = self.rounded_weights(case, [*cotangents, *arrays[1:]], not case.transpose)
        # The gradient of an x that was broadcast is a product of float32.
        further = further if np.shape(further) == arrays[0].shape else 0
        return [
            Budget.of(lambda a, i=i: results[a][i], magnitudes[i], dtype, 0 if i else further)
            for i, dtype in enumerate(case.dtypes)
        ]

    def resized(self, case, n_rows):
        return case if len(case.x) == 1 else case.with_x(*case.x[:-2], n_rows, case.x[-1])

    def empty(self, case):
        *batch, n, k = case.w if case.transpose else (*case.w[:-2], case.w[-1], case.w[-2])
        yield replace(
            case, x=(*case.x[:-1], 0), w=(*batch, n, 0) if case.transpose else (*batch, 0, n)
        )
        yield replace(case, w=(*batch, 0, k) if case.transpose else (*batch, k, 0))
        if len(case.x) > 1:
            yield case.with_x(*case.x[:-2], 0, k)
            if not batch:
                yield case.with_x(0, *case.x)
