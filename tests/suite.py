"""The generic checks: whatever the op, over its cases and the chosen backends.

A test module describes its op by a subclass of ``Op``, lists cases (data), and inherits ``Checks``.
"""

import functools
import io
import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import layouts
import mlx.core as mx
import numpy as np
import pytest
from cases import Arrays, Backend, Case, Op, fused_only
from tolerance import assert_same_bits, bits_of, to_float64

N_WORKERS = 4
WORKERS = ThreadPoolExecutor(N_WORKERS)
THREAD = threading.local()


def evaluated(arrays: Iterable[mx.array]) -> Arrays:
    arrays = list(arrays)
    mx.eval(arrays)
    return arrays


def random_like(arrays: Iterable[mx.array], rng: np.random.Generator) -> Arrays:
    return [
        mx.array(rng.standard_normal(a.shape).astype(np.float32)).astype(a.dtype) for a in arrays
    ]


def replaced(arrays: Sequence[mx.array], positions: Iterable[int], values: Iterable) -> Arrays:
    result = list(arrays)
    for position, value in zip(positions, values, strict=True):
        result[position] = value
    return result


def subsets(positions: Sequence[int]) -> list[tuple[int, ...]]:
    """All of them; of more than four positions only each, all, and all but one."""
    n = len(positions)
    sizes = range(1, n + 1) if n <= 4 else (1, n - 1, n)
    return [subset for n in sizes for subset in itertools.combinations(positions, n)]


def inner_product(left: Iterable[mx.array], right: Iterable[mx.array]) -> float:
    pairs = zip(left, right, strict=True)
    return sum(float((to_float64(a) * to_float64(b)).sum()) for a, b in pairs)


def primitives(outputs: Arrays) -> Counter[str]:
    """How many nodes of each name the graph of the outputs has."""
    graph = io.StringIO()
    mx.export_to_dot(graph, *outputs)
    return Counter(re.findall(r'label ="(\w+)"', graph.getvalue()))


def stream_of_thread(backend: Backend) -> mx.Stream:
    """The calling thread's own stream. MLX never ends the system thread behind one: keep it."""
    streams = vars(THREAD).setdefault("streams", {})
    if backend not in streams:
        streams[backend] = mx.new_stream(backend.device)
    return streams[backend]


@functools.cache
def compiler_works() -> bool:
    """Whether mx.compile can fuse elementwise ops here: on a CPU it calls the C++ compiler."""
    try:
        mx.eval(mx.compile(lambda x: mx.exp(x) * 2 + x)(mx.ones(3)))
    except RuntimeError:
        return False
    return True


class Checks:
    """The tests that every op has to pass. What has to be the same is so to the last bit."""

    op: Op
    cases: Sequence[Case]

    @classmethod
    def full_cases(cls) -> Sequence[Case]:
        """The product of all options."""
        return cls.cases

    def run(self, case: Case, arrays: Sequence[mx.array], backend: Backend) -> Arrays:
        return evaluated(self.op.call(case, arrays, backend.device))

    def function(self, case: Case, backend: Backend) -> Callable[..., Arrays]:
        """The float outputs as a function of all inputs."""

        def call(*arrays: mx.array) -> Arrays:
            outputs = self.op.call(case, arrays, backend.device)
            return [outputs[i] for i in self.op.float_outputs]

        return call

    def partial(
        self, case: Case, backend: Backend, arrays: Arrays, positions: Sequence[int]
    ) -> Callable[..., Arrays]:
        """The float outputs as a function of the inputs at ``positions``."""
        function = self.function(case, backend)
        return lambda *values: function(*replaced(arrays, positions, values))

    def assert_same(
        self, actual: Sequence[mx.array], expected: Sequence[mx.array], what: str
    ) -> None:
        for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
            assert_same_bits(a, b, f"{what}, output {i}")

    def test_forward(self, case: Case, backend: Backend) -> None:
        arrays = evaluated(self.op.arrays(case))
        before = [bits_of(a) for a in arrays]
        with fused_only(self.op, backend):
            outputs = self.run(case, arrays, backend)
        for i, (output, expected) in enumerate(
            zip(outputs, self.op.expected(case, arrays), strict=True)
        ):
            expected.check(output, f"output {i}")
        for name, array, bits in zip(self.op.inputs, arrays, before, strict=True):
            assert np.array_equal(bits_of(array), bits), f"{name} was written to"
        self.assert_same(self.run(case, arrays, backend), outputs, "second run")

    def test_vjp(self, case: Case, backend: Backend) -> None:
        arrays = self.op.arrays(case)
        cotangents = random_like(self.function(case, backend)(*arrays), case.rng(1))
        all_expected = self.op.expected_vjp(case, arrays, cotangents)
        for subset in subsets(self.op.differentiable):
            function = self.partial(case, backend, arrays, subset)
            _, gradients = mx.vjp(function, [arrays[i] for i in subset], cotangents)
            for position, gradient in zip(subset, gradients, strict=True):
                expected = all_expected[self.op.differentiable.index(position)]
                expected.check(gradient, f"gradient of {self.op.inputs[position]} among {subset}")

    def test_jvp(self, case: Case, backend: Backend) -> None:
        arrays = self.op.arrays(case)
        positions = self.op.differentiable
        for subset in subsets(positions):
            function = self.partial(case, backend, arrays, subset)
            tangents = random_like((arrays[i] for i in subset), case.rng(2))
            _, outputs = mx.jvp(function, [arrays[i] for i in subset], tangents)
            zeros = replaced([mx.zeros_like(a) for a in arrays], subset, tangents)
            expected = self.op.expected_jvp(case, arrays, [zeros[i] for i in positions])
            for output, budget in zip(outputs, expected, strict=True):
                budget.check(output, f"tangent, given those of {subset}")

    def test_vjp_is_the_adjoint_of_jvp(self, case: Case, backend: Backend) -> None:
        arrays = self.op.arrays(case)
        positions = self.op.differentiable
        function = self.partial(case, backend, arrays, positions)
        primals = [arrays[i] for i in positions]
        tangents = random_like(primals, case.rng(3))
        outputs, forward = mx.jvp(function, primals, tangents)
        cotangents = random_like(outputs, case.rng(4))
        _, backward = mx.vjp(function, primals, cotangents)
        slack = sum(
            float((np.abs(to_float64(vector)) * budget.bound).sum())
            for vector, budget in zip(
                [*cotangents, *tangents],
                self.op.expected_jvp(case, arrays, tangents)
                + self.op.expected_vjp(case, arrays, cotangents),
                strict=True,
            )
        )
        difference = inner_product(cotangents, forward) - inner_product(backward, tangents)
        assert abs(difference) <= slack, f"<v, J u> and <J' v, u> differ by {difference}"

    def test_vmap_is_stacking(self, case: Case, backend: Backend) -> None:
        variants = [self.op.arrays(case, variant) for variant in range(3)]
        function = self.function_of_all(case, backend)
        for subset in subsets(self.op.mappable()):
            runs = [replaced(variants[0], subset, [v[i] for i in subset]) for v in variants]
            columns = zip(*(function(*run) for run in runs), strict=True)
            expected = [mx.stack(column) for column in columns]
            for axes in self.axes_to_map(subset):
                stacked = replaced(
                    variants[0],
                    subset,
                    (
                        mx.stack([r[i] for r in runs], axis=a)
                        for i, a in zip(subset, axes, strict=True)
                    ),
                )
                in_axes = tuple(replaced([None] * len(stacked), subset, axes))
                outputs = mx.vmap(function, in_axes=in_axes)(*stacked)
                what = f"vmap over {subset} along {axes}"
                if backend.rows_alone:
                    self.assert_same(outputs, expected, what)
                    continue
                for i, run in enumerate(runs):
                    budgets = self.op.expected(case, run)
                    for output, budget in zip(outputs, budgets, strict=True):
                        budget.check(output[i], what)

    @staticmethod
    def axes_to_map(subset: tuple[int, ...]) -> list[tuple[int, ...]]:
        mixed = tuple((0, -1, 1)[i % 3] for i in range(len(subset)))
        return sorted({(axis,) * len(subset) for axis in (0, 1, -1)} | {mixed})

    def function_of_all(self, case: Case, backend: Backend) -> Callable[..., tuple[mx.array, ...]]:
        """All outputs as a function of all inputs."""
        return lambda *arrays: tuple(self.op.call(case, arrays, backend.device))

    def test_vmap_composes(self, case: Case, backend: Backend) -> None:
        """The gradient of a vmap and the vmap of a gradient; a vmap within a vmap."""
        variants = [self.op.arrays(case, variant) for variant in range(4)]
        positions = self.op.differentiable
        function = self.function(case, backend)
        outputs = [function(*v) for v in variants]
        cotangents = [random_like(o, case.rng(5 + i)) for i, o in enumerate(outputs)]

        def gradient(cotangents: Arrays, arrays: Arrays) -> Arrays:
            partial = self.partial(case, backend, arrays, positions)
            return mx.vjp(partial, [arrays[i] for i in positions], cotangents)[1]

        columns = enumerate(zip(*variants, strict=True))
        axes = tuple(0 if i in self.op.mappable() else None for i in range(len(variants[0])))
        stacked = [mx.stack(c) if axes[i] == 0 else c[0] for i, c in columns]
        stacked_cotangents = [mx.stack(column) for column in zip(*cotangents, strict=True)]

        def mapped(*values: mx.array) -> Arrays:
            return mx.vmap(function, in_axes=axes)(*replaced(stacked, positions, values))

        _, of_vmap = mx.vjp(mapped, [stacked[i] for i in positions], stacked_cotangents)
        n = len(stacked_cotangents)
        vmap_of = mx.vmap(lambda *a: gradient(list(a[:n]), list(a[n:])), in_axes=(*[0] * n, *axes))(
            *stacked_cotangents, *stacked
        )
        for i, (arrays, vectors) in enumerate(zip(variants, cotangents, strict=True)):
            for j, budget in enumerate(self.op.expected_vjp(case, arrays, vectors)):
                name = self.op.inputs[positions[j]]
                budget.check(of_vmap[j][i], f"gradient of vmap, {name}")
                budget.check(vmap_of[j][i], f"vmap of gradient, {name}")

        nested = [
            a if axes[i] is None else a.reshape(2, 2, *a.shape[1:]) for i, a in enumerate(stacked)
        ]
        twice = mx.vmap(mx.vmap(function, in_axes=axes), in_axes=axes)(*nested)
        expected = [mx.stack(column) for column in zip(*outputs, strict=True)]
        self.assert_same([t.flatten(0, 1) for t in twice], expected, "vmap of vmap")

    def test_compile(self, case: Case, backend: Backend) -> None:
        function = self.function_of_all(case, backend)
        arrays = self.op.arrays(case)
        expected = function(*arrays)
        self.assert_same(mx.compile(function)(*arrays), expected, "compiled")
        any_shape = mx.compile(function, shapeless=True)
        self.assert_same(any_shape(*arrays), expected, "compiled for any shape")
        for n_rows in (1, 5, 2, 33, 5):
            other = self.op.resized(case, n_rows)
            arrays = self.op.arrays(other)
            expected = self.function_of_all(other, backend)(*arrays)
            self.assert_same(any_shape(*arrays), expected, f"compiled, {n_rows} rows")

    def test_compiled_gradient(self, case: Case, backend: Backend) -> None:
        if not compiler_works():
            pytest.skip("mx.compile finds no C++ compiler that it can use")
        n_arrays = len(self.op.inputs)
        positions = self.op.differentiable

        def gradient(*values: mx.array) -> Arrays:
            arrays, cotangents = list(values[:n_arrays]), list(values[n_arrays:])
            function = self.partial(case, backend, arrays, positions)
            return mx.vjp(function, [arrays[i] for i in positions], cotangents)[1]

        any_shape = mx.compile(gradient, shapeless=True)
        for other in (case, *(self.op.resized(case, n_rows) for n_rows in (2, 33))):
            arrays = self.op.arrays(other)
            cotangents = random_like(self.function(other, backend)(*arrays), case.rng(6))
            budgets = self.op.expected_vjp(other, arrays, cotangents)
            for what, compiled in (("compiled", mx.compile(gradient)), ("any shape", any_shape)):
                for budget, result in zip(budgets, compiled(*arrays, *cotangents), strict=True):
                    budget.check(result, f"{what}, {other}")

    def test_layouts(self, case: Case, backend: Backend) -> None:
        """Views of other strides, and slices whose neighbours are NaN or all ones."""
        arrays = self.op.arrays(case)
        expected = self.run(case, arrays, backend)
        for position, name in enumerate(self.op.inputs):
            for layout, view in layouts.views(arrays[position]):
                outputs = self.run(case, replaced(arrays, [position], [view]), backend)
                self.assert_same(outputs, expected, f"{name} {layout}")
            same, view = layouts.broadcast(arrays[position])
            outputs = self.run(case, replaced(arrays, [position], [view]), backend)
            contiguous = self.run(case, replaced(arrays, [position], [same]), backend)
            self.assert_same(outputs, contiguous, f"{name} broadcast")
        for layout in layouts.NAMES:
            views = [layouts.view(a, layout) for a in arrays]
            self.assert_same(self.run(case, views, backend), expected, f"all inputs {layout}")

    def test_empty(self, case: Case, backend: Backend) -> None:
        for empty in self.op.empty(case):
            arrays = evaluated(self.op.arrays(empty))
            outputs = self.run(empty, arrays, backend)
            for output, expected in zip(outputs, self.op.expected(empty, arrays), strict=True):
                expected.check(output, str(empty))
            function = self.partial(empty, backend, arrays, self.op.differentiable)
            primals = [arrays[i] for i in self.op.differentiable]
            cotangents = [mx.ones_like(outputs[i]) for i in self.op.float_outputs]
            _, gradients = mx.vjp(function, primals, cotangents)
            budgets = self.op.expected_vjp(empty, arrays, cotangents)
            for gradient, budget in zip(gradients, budgets, strict=True):
                budget.check(gradient, f"gradient, {empty}")

    def test_streams_and_threads(self, case: Case, backend: Backend) -> None:
        """Several threads with their own streams, many calls in flight: the same bits as alone."""
        variants = [evaluated(self.op.arrays(case, variant)) for variant in range(3)]
        alone = [[bits_of(o) for o in self.run(case, arrays, backend)] for arrays in variants]

        def work() -> None:
            stream = stream_of_thread(backend)
            runs = [self.op.call(case, arrays, stream) for arrays in variants * 4]
            mx.eval(runs)
            for i, outputs in enumerate(runs):
                for output, expected in zip(outputs, alone[i % 3], strict=True):
                    with mx.stream(stream):
                        assert np.array_equal(bits_of(output), expected), f"call {i} differs"

        for running in [WORKERS.submit(work) for _ in range(2 * N_WORKERS)]:
            running.result()

    def test_equal_calls_are_merged(self, case: Case, backend: Backend) -> None:
        """mx.compile keeps one of two equal calls, which asks the primitive's is_equivalent."""
        arrays = self.op.arrays(case)
        function = self.function(case, backend)

        def twice(*arrays: mx.array) -> Arrays:
            return [a + b for a, b in zip(function(*arrays), function(*arrays), strict=True)]

        once = primitives(function(*arrays))
        merged = primitives(mx.compile(twice)(*arrays))
        assert {name: merged[name] for name in once} == once
