"""Apple's affine quantized matmul kernels, unmodified, against float64."""

import apple_kernels as ak
import numpy as np
import pytest

HEADERS = ("utils.h", "steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")
F, H, B = "float", "half", "bfloat16_t"

# (type, group size, bits) of the instances; each kernel takes a few of them.
VECTOR_FORMATS = [
    (F, 64, 4),
    (H, 32, 3),
    (B, 128, 8),
    (F, 64, 1),
    (H, 64, 6),
    (B, 32, 5),
    (F, 32, 2),
]
FAST_FORMATS = [(F, 64, 4), (H, 64, 8), (B, 32, 2)]
MATRIX_FORMATS = [(F, 64, 4), (H, 32, 3), (B, 64, 8)]


def instance(kernel, kind, group_size, bits, *rest):
    return f"{kernel}<{', '.join(map(str, (kind, group_size, bits, *rest)))}>"


def name(kernel, kind, group_size, bits):
    return f"{kernel}_{kind}_{group_size}_{bits}"


@pytest.fixture(scope="module")
def library(apple):
    tables = {
        "affine_qmv": (VECTOR_FORMATS, "false"),
        "affine_qmv_fast": (FAST_FORMATS, "false"),
        "affine_qvm": (FAST_FORMATS, "false"),
        "affine_qmm_t": (MATRIX_FORMATS, "false", "false"),
        "affine_qmm_n": (MATRIX_FORMATS, "false"),
    }
    return apple(
        *HEADERS,
        **{
            name(kernel, *row): instance(kernel, *row, *rest)
            for kernel, (rows, *rest) in tables.items()
            for row in rows
        },
    )


def packed(codes, bits):
    """Codes as one LSB-first bit stream a row."""
    stream = np.unpackbits(codes.astype(np.uint8)[..., None], axis=-1, bitorder="little")[
        ..., :bits
    ]
    return np.packbits(stream.reshape(codes.shape[0], -1), axis=-1, bitorder="little")


class Problem:
    """Random weights of `rows` by `columns` in groups along the columns, and inputs."""

    def __init__(self, kind, group_size, bits, rows, columns, n_vectors, x_columns):
        rng = np.random.default_rng(rows * columns + bits)
        codes = rng.integers(0, 2**bits, (rows, columns))
        groups = (rows, columns // group_size)
        self.kind = kind
        self.scales = ak.rounded(rng.uniform(0.5, 2, groups) / 2**bits, kind)
        self.biases = ak.rounded(-rng.uniform(0.25, 1, groups), kind)
        self.w_q = packed(codes, bits)
        self.x = ak.rounded(rng.normal(size=(n_vectors, x_columns)), kind)
        scales, biases = (
            np.repeat(ak.float32(a).astype(np.float64), group_size, axis=1)
            for a in (self.scales, self.biases)
        )
        self.w = codes * scales + biases
        # Products and sums of a weight, each of which may be rounded by itself.
        self.w_parts = codes * scales + np.abs(biases)

    def check(self, y, transpose, rounded_weights):
        x = ak.float32(self.x).astype(np.float64)
        w, parts = (self.w.T, self.w_parts.T) if transpose else (self.w, self.w_parts)
        magnitude = np.abs(x) @ parts
        # Sums of n terms, however ordered, stay within n roundings of their magnitude; random
        # errors of their terms within its square root.
        budget = 4 * np.sqrt(x.shape[1]) * ak.ROUNDING[F] * magnitude
        if rounded_weights:
            budget = budget + 2 * ak.ROUNDING[self.kind] * magnitude
        ak.assert_within(y, x @ w, budget, self.kind)

    def buffers(self, y, *sizes):
        """The arguments, without those that tell about batches."""
        arrays = (self.w_q, self.scales, self.biases, self.x, y)
        arguments = dict(enumerate((*arrays, *sizes)))
        return arguments | {index: None for index in range(len(arguments), 16)}


def output(kind, rows, columns):
    return np.zeros((rows, columns), ak.DTYPES[kind])


def launch(library, kernel, row, buffers, **sizes):
    pipeline = library.pipeline(name(kernel, *row))
    known = {argument.index for argument in pipeline.arguments}
    return pipeline.launch({i: b for i, b in buffers.items() if i in known}, **sizes)


@pytest.mark.parametrize("row", VECTOR_FORMATS, ids=str)
@pytest.mark.parametrize(("n_in", "n_out", "n_vectors"), [(512 + 128, 24, 1), (128, 11, 2)])
def test_qmv(library, row, n_in, n_out, n_vectors):
    problem = Problem(*row, n_out, n_in, n_vectors, n_in)
    y = output(row[0], n_vectors, n_out)
    buffers = problem.buffers(y, n_in, n_out)
    grid = (n_vectors, -(-n_out // 8))
    result = launch(library, "affine_qmv", row, buffers, grid=grid, threadgroup=(32, 2))
    assert result.counters["matmul_flops"] == 0
    problem.check(y, transpose=True, rounded_weights=False)


@pytest.mark.parametrize("row", FAST_FORMATS, ids=str)
def test_qmv_fast(library, row):
    problem = Problem(*row, 16, 1024, 2, 1024)
    y = output(row[0], 2, 16)
    buffers = problem.buffers(y, 1024, 16)
    launch(library, "affine_qmv_fast", row, buffers, grid=(2, 2), threadgroup=(32, 2))
    problem.check(y, transpose=True, rounded_weights=False)


@pytest.mark.parametrize("row", FAST_FORMATS, ids=str)
def test_qvm(library, row):
    n_in, n_out = 96, 192
    n_out = 256 if row[1] == 128 else n_out
    problem = Problem(*row, n_in, n_out, 2, n_in)
    y = output(row[0], 2, n_out)
    buffers = problem.buffers(y, n_in, n_out)
    launch(library, "affine_qvm", row, buffers, grid=(2, -(-n_out // 64)), threadgroup=(32, 2))
    problem.check(y, transpose=False, rounded_weights=False)


@pytest.mark.parametrize("row", MATRIX_FORMATS, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(32, 64, 128), (45, 72, 64)])
def test_qmm_t(library, row, m, n, k):
    problem = Problem(*row, n, k, m, k)
    y = output(row[0], m, n)
    grid = (-(-n // 32), -(-m // 32))
    buffers = problem.buffers(y, k, n, m)
    result = launch(library, "affine_qmm_t", row, buffers, grid=grid, threadgroup=(32, 2, 2))
    assert result.counters["matmul_flops"] == 2 * 32 * 32 * grid[0] * grid[1] * k
    problem.check(y, transpose=True, rounded_weights=True)


@pytest.mark.parametrize("row", MATRIX_FORMATS, ids=str)
def test_qmm_n(library, row):
    m, n, k = 40, 128, 96
    problem = Problem(*row, k, n, m, k)
    y = output(row[0], m, n)
    buffers = problem.buffers(y, k, n, m)
    launch(library, "affine_qmm_n", row, buffers, grid=(4, 2), threadgroup=(32, 2, 2))
    problem.check(y, transpose=False, rounded_weights=True)


def test_a_wrong_scale_is_noticed(library):
    row = MATRIX_FORMATS[0]
    problem = Problem(*row, 64, 128, 32, 128)
    problem.scales[3, 1] *= 1.001
    y = output(row[0], 32, 64)
    buffers = problem.buffers(y, 128, 64, 32)
    launch(library, "affine_qmm_t", row, buffers, grid=(2, 1), threadgroup=(32, 2, 2))
    with pytest.raises(AssertionError, match="times the budget"):
        problem.check(y, transpose=True, rounded_weights=True)
