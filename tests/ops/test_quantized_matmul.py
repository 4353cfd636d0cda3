"""quantized_matmul: its cases, and the properties that only it has."""

import itertools
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import suite
from affine_cases import DTYPES, AffineCase, near_16_bits, variants
from affine_ops import QuantizedMatmul
from tolerance import Budget, assert_same_bits, to_float64

import mlx_tensorops as mto
from mlx_tensorops.reference import quantized_matmul as reference
from mlx_tensorops.reference.formats import affine


def matrix(transpose: bool, n: int, k: int) -> tuple[int, int]:
    return (n, k) if transpose else (k, n)


def kernel_cases() -> list[AffineCase]:
    """Every (transpose, few or many rows, bits, dtype); tails and group sizes take turns."""
    cases = []
    for transpose, many in itertools.product((True, False), repeat=2):
        for i, (bits, group_size, dtype) in enumerate(variants()):
            n_rows = (17, 40, 130)[i % 3] if many else (1, 2, 3, 5, 8)[i % 5]
            ragged = (7, 96, 33, 1)[i % 4]
            grouped = group_size * (1, 3, 5, 2, 4)[i % 5]
            n, k = (ragged, grouped) if transpose else (grouped, ragged)
            scales, biases = DTYPES[i // 2 % 3], DTYPES[i // 5 % 3]
            cases.append(
                AffineCase(
                    w=matrix(transpose, n, k),
                    bits=bits,
                    group_size=group_size,
                    scales=scales,
                    biases=biases,
                    dtype=dtype,
                    x=(n_rows, k),
                    transpose=transpose,
                )
            )
    return cases


def shape_cases() -> list[AffineCase]:
    """Leading dimensions, broadcasting, single rows, long sums (R25)."""
    plain = AffineCase(w=(24, 128), x=(3, 128))
    return [
        plain.with_x(128),
        replace(plain, x=(24,), transpose=False),
        plain.with_x(2, 3, 128),
        plain.with_x(2, 1, 4, 3, 128),
        replace(plain, x=(3, 2, 24), transpose=False, dtype="bfloat16"),
        plain.with_x(5, 3, 128).with_w(5, 24, 128),
        plain.with_x(1, 3, 128).with_w(5, 24, 128),
        plain.with_x(5, 3, 128).with_w(1, 24, 128),
        plain.with_x(4, 1, 3, 128).with_w(5, 24, 128),
        plain.with_x(8, 1, 128).with_w(8, 67, 128),
        plain.with_x(3, 128).with_w(5, 24, 128),
        plain.with_x(128).with_w(2, 24, 128),
        plain.with_x(2, 1, 20, 128).with_w(2, 3, 24, 128),
        replace(plain, x=(2, 3, 24), w=(2, 24, 128), transpose=False),
        replace(plain, x=(3, 1, 2, 24), w=(2, 24, 128), transpose=False, dtype="float16"),
        AffineCase(w=(7, 96), x=(2, 96), group_size=32, dtype="bfloat16", scales="bfloat16"),
        AffineCase(w=(96, 160), x=(33, 160), group_size=32, dtype="float16", scales="float16"),
        AffineCase(w=(1024, 32), x=(1, 1024), group_size=32, transpose=False),
        AffineCase(w=(9, 4096), x=(3, 4096), dtype="bfloat16", scales="bfloat16"),
        AffineCase(w=(3000, 64), x=(2, 3000), transpose=False, dtype="bfloat16"),
    ]


CASES = kernel_cases() + shape_cases()


def all_cases() -> list[AffineCase]:
    options = itertools.product(
        (True, False), affine.BITS, affine.GROUP_SIZES, DTYPES, DTYPES, (1, 3, 4, 8, 9, 16, 33, 64)
    )
    cases = list(CASES)
    for i, (transpose, bits, group_size, dtype, scales, n_rows) in enumerate(options):
        ragged, grouped = (1, 7, 31, 96, 130)[i % 5], group_size * (1, 2, 3, 8)[i % 4]
        n, k = (ragged, grouped) if transpose else (grouped, ragged)
        w = matrix(transpose, n, k)
        case = AffineCase(
            w, bits, group_size, scales, dtype=dtype, x=(n_rows, k), transpose=transpose
        )
        cases.append(case)
    return cases


class TestQuantizedMatmul(suite.Checks):
    op = QuantizedMatmul()
    cases = CASES

    @classmethod
    def full_cases(cls):
        return all_cases()


OP = QuantizedMatmul()
PAIRS = [
    AffineCase(w=matrix(t, 103 if t else 192, 320), bits=b, dtype=d, scales=d, transpose=t)
    for t, (b, d) in itertools.product((True, False), zip((4, 8, 3), DTYPES, strict=True))
]


def test_cases_differ():
    assert len({str(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.kernels("cpu")
def test_every_instruction_set(case, backend, isa):
    arrays = OP.arrays(case)
    for output, expected in zip(
        OP.call(case, arrays, backend.device), OP.expected(case, arrays), strict=True
    ):
        expected.check(output, isa)


def rows_alone(case, x, rest, device):
    rows = [OP.call(case, [x[i : i + 1], *rest], device)[0] for i in range(x.shape[0])]
    return mx.concatenate(rows, 0)


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_rows_do_not_depend_on_their_number(case, backend, isa):
    """R30: row r of a batch is row r alone, whatever path the number of rows takes."""
    k = case.w[-1] if case.transpose else case.w[-2]
    counts, batches = (*range(1, 41), 64, 100, 130), (2, 5, 13)
    if not backend.rows_alone:
        counts, batches = (1, 2, 3, 5, 8, 9, 16, 17, 31, 32), (2, 2, 8)
    x, *rest = OP.arrays(case.with_x(counts[-1], k))
    alone = rows_alone(case, x, rest, backend.device)
    for n_rows in counts:
        (together,) = OP.call(case, [x[:n_rows], *rest], backend.device)
        assert_same_bits(together, alone[:n_rows], f"{n_rows} rows, seed {case.seed}")
    (batched,) = OP.call(case, [x.reshape(*batches, k), *rest], backend.device)
    assert_same_bits(batched.flatten(0, -2), alone, "as a batch")


@pytest.mark.parametrize("n_rows", (1, 6, 70))
@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.kernels("cpu")
def test_threads_do_not_matter(n_rows, transpose, backend, threads):
    case = AffineCase(w=(640, 640), x=(n_rows, 640), transpose=transpose, dtype="bfloat16")
    arrays = OP.arrays(case)
    threads(1)
    expected = OP.call(case, arrays, backend.device)[0]
    mx.eval(expected)
    for n_threads in (2, 3, 5, 8):
        threads(n_threads)
        assert_same_bits(OP.call(case, arrays, backend.device)[0], expected, f"{n_threads} threads")


@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, repeat=3)), ids="-".join)
def test_output_has_the_dtype_of_x(dtypes, backend):
    """R27: neither scales nor biases of a wider dtype widen the output."""
    dtype, scales, biases = dtypes
    case = AffineCase(w=(8, 128), x=(3, 128), dtype=dtype, scales=scales, biases=biases)
    arrays = OP.arrays(case)
    (output,) = OP.call(case, arrays, backend.device)
    OP.expected(case, arrays)[0].check(output, f"seed {case.seed}")


@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.parametrize("bits", affine.BITS)
def test_agrees_with_mlx_in_float32(bits, transpose, backend):
    """MLX's own op differs by rounding alone: both fit the budget."""
    case = AffineCase(w=(64, 128), bits=bits, x=(5, 128 if transpose else 64), transpose=transpose)
    arrays = OP.arrays(case)
    theirs = mx.quantized_matmul(*arrays, **OP.options(case), stream=mx.cpu)
    (budget,) = OP.expected(case, arrays)
    budget.check(theirs, "mx.quantized_matmul")
    budget.check(OP.call(case, arrays, backend.device)[0], "ours")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose", (True, False))
def test_second_derivative_of_x(transpose, dtype, backend):
    """For the loss |y|^2 / 2 the Hessian is W' W; that of x and scales follows from linearity."""
    case = AffineCase(w=(32, 64), x=(3, 64 if transpose else 32), transpose=transpose, dtype=dtype)
    x, w, scales, biases = arrays = OP.arrays(case)
    u, v = suite.random_like([x, OP.call(case, arrays, backend.device)[0]], case.rng(1))

    def y(x, scales):
        return OP.call(case, [x, w, scales, biases], backend.device)[0]

    def slope(x):
        return (mx.grad(lambda x: (y(x, scales).square() / 2).sum())(x) * u).sum()

    along_u = mx.grad(slope)(x)
    (wu,) = OP.expected(case, [u, w, scales, biases])
    rounded = mx.array(wu.exact.astype(np.float32)).astype(x.dtype)
    cotangent_error = np.abs(to_float64(rounded) - wu.exact) + wu.bound
    hessian_u = OP.expected_vjp(case, arrays, [rounded])[0]
    dense = np.abs(dense_weights(case, arrays))
    carried = cotangent_error @ (dense if transpose else dense.T)
    Budget(hessian_u.exact, hessian_u.bound + carried, x.dtype).check(along_u, "Hessian of x")

    def mixed(scales):
        return (mx.grad(lambda x: (y(x, scales) * v).sum())(x) * u).sum()

    expected = OP.expected_vjp(case, [u, w, scales, biases], [v])[1]
    expected.check(mx.grad(mixed)(scales), "derivative by x, then by scales")


def dense_weights(case, arrays):
    unit = mx.eye(case.x[-1])
    dense = reference.quantized_matmul(unit, *arrays[1:], **OP.options(case))
    return dense.T if case.transpose else dense


def test_packed_weights_have_no_gradient(backend):
    case = AffineCase(w=(8, 64), x=(2, 64))
    arrays = OP.arrays(case)
    function = TestQuantizedMatmul().function(case, backend)
    message = r"\[quantized_matmul\] .*\bw\b"
    with pytest.raises(ValueError, match=message):
        mx.vjp(lambda w: function(arrays[0], w, *arrays[2:]), [arrays[1]], [mx.ones((2, 8))])
    with pytest.raises(ValueError, match=message):
        mx.grad(lambda x, w: function(x, w, *arrays[2:])[0].sum(), argnums=(0, 1))(*arrays[:2])
    with pytest.raises(ValueError, match=message):
        tangent = mx.zeros_like(arrays[1])
        mx.jvp(lambda w: function(arrays[0], w, *arrays[2:]), [arrays[1]], [tangent])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_rows", (1, 40))
def test_sums_are_kept_in_float32(n_rows, dtype, backend):
    """Partial sums of 16 million, beyond float16 and the integers of bfloat16; the total is 255."""
    values = np.repeat([256, -256, 1, 0], [255, 255, 1, 1]).astype(np.float32)
    for order in (values, np.random.default_rng(0).permutation(values)):
        x = mx.array(np.tile(order, (n_rows, 1))).astype(getattr(mx, dtype))
        w, scales, biases = mto.quantize(mx.full((4, 512), 255.0), bits=8)
        output = mto.quantized_matmul(x, w, scales, biases, bits=8, stream=backend.device)
        assert (output == 255).all()


@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.parametrize("n_rows", (3, 40))
def test_nan_stays_where_it_is(n_rows, transpose, backend):
    case = AffineCase(w=(64, 64), x=(n_rows, 64), transpose=transpose)
    x, w, scales, biases = OP.arrays(case)
    (clean,) = OP.call(case, [x, w, scales, biases], backend.device)
    x[1, 5] = float("nan")
    (output,) = OP.call(case, [x, w, scales, biases], backend.device)
    assert mx.isnan(output[1]).all()
    others = mx.concatenate([output[:1], output[2:]])
    assert_same_bits(others, mx.concatenate([clean[:1], clean[2:]]), "other rows")
    if transpose:
        x, w, scales, biases = OP.arrays(case)
        scales[7] = float("inf")
        (output,) = OP.call(case, [x, w, scales, biases], backend.device)
        assert not mx.isfinite(output[:, 7]).any()
        assert mx.isfinite(mx.concatenate([output[:, :7], output[:, 8:]], 1)).all()


def test_different_options_are_not_merged(backend):
    """Equal inputs, another transpose: mx.compile has to keep both."""
    case = AffineCase(w=(64, 64), x=(3, 64))
    arrays = OP.arrays(case)

    def both(*arrays):
        flipped = replace(case, transpose=False)
        return [OP.call(c, arrays, backend.device)[0] for c in (case, flipped)]

    def total(*arrays):
        return mx.concatenate(both(*arrays))

    assert_same_bits(mx.compile(total)(*arrays), total(*arrays), "compiled")
    assert not mx.array_equal(*both(*arrays))


LARGE = [
    AffineCase(w=(32840, 128), x=(17, 128), dtype="float16", scales="float16"),
    AffineCase(w=(64, 128), x=(33000, 128), dtype="bfloat16"),
    AffineCase(w=(128, 64), x=(33000, 128), transpose=False),
    AffineCase(w=(11008, 256), x=(100, 11008), transpose=False, dtype="float16"),
    AffineCase(w=(16384, 128), x=(1, 16384), group_size=128, bits=2, transpose=False),
    AffineCase(w=(128, 16384), x=(2, 16384), group_size=32, bits=8, dtype="bfloat16"),
]


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large_dimensions(case, backend):
    """Rows, columns and sums that no 16-bit index holds, none a multiple of a tile."""
    arrays = OP.arrays(case)
    (output,) = OP.call(case, arrays, backend.device)
    OP.expected(case, arrays)[0].check(output, f"seed {case.seed}")


@pytest.mark.parametrize("n_rows", (1, 64))
@pytest.mark.parametrize("transpose", (True, False))
def test_weights_are_not_dequantized_in_memory(transpose, n_rows, backend):
    """MLX's allocator hands out 8 MiB at most besides the output; the decoded w has 16 MiB."""
    case = AffineCase(w=(2048, 2048), x=(n_rows, 2048), transpose=transpose)
    arrays = suite.evaluated(OP.arrays(case))
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    (output,) = suite.evaluated(OP.call(case, arrays, backend.device))
    assert mx.get_peak_memory() - before - output.nbytes < 8 * 2**20


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.parametrize("n_rows", (1, 6))
def test_rounding_of_the_output(n_rows, transpose, dtype, backend, isa):
    """1 * scale, for every 16-bit scale, and for those next to the middle of two of them."""
    scales = mx.array(near_16_bits("float16" if dtype == "float16" else "bfloat16"))
    case = AffineCase(w=(), group_size=32, bits=1, dtype=dtype, transpose=transpose)
    # Transposed, a row holds one group, whose first code is 1; else the row holds all groups.
    scales = scales[:, None] if transpose else scales[None, ::7]
    x = mx.zeros((n_rows, 32 if transpose else 1), case.dtypes[0])
    x[:, 0] = 1
    arrays = [x, mx.ones(scales.shape, mx.uint32), scales, mx.zeros_like(scales)]
    (y,) = OP.call(case, arrays, backend.device)
    expected = mx.broadcast_to(scales.flatten(), (n_rows, scales.size)).astype(x.dtype)
    assert_same_bits(y if transpose else y[:, ::32], expected, isa)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_16_bit_value_is_read_as_it_is(dtype, backend, isa):
    x = mx.array(near_16_bits(dtype)).astype(getattr(mx, dtype))
    x = mx.where(mx.isfinite(x), x, 0)[:, None]
    case = AffineCase(w=(), group_size=32, bits=1, dtype=dtype, transpose=False)
    one = mx.ones((1, 1), mx.uint32)
    (y,) = OP.call(case, [x, one, mx.ones((1, 1)), mx.zeros((1, 1))], backend.device)
    assert_same_bits(y[:, :1], x, isa)


@pytest.mark.full
@pytest.mark.parametrize("transpose", (True, False))
def test_offsets_have_64_bits(transpose, backend):
    """More than 2^32 values of w: offsets in values, and for 8 bits in bytes, exceed 32 bits."""
    n, k = 2**17 + 8, 2**15
    bits, group_size = 1, 128
    w = mx.zeros((n, k * bits // 32), mx.uint32)
    w[-1] = 0xFFFFFFFF
    scales = mx.ones((n, k // group_size), mx.float16)
    biases = mx.zeros((n, k // group_size), mx.float16)
    x = mx.ones((2, k if transpose else n))
    y = mto.quantized_matmul(
        x, w, scales, biases, transpose, group_size, bits, force_fused=True, stream=backend.device
    )
    if transpose:
        assert y[:, -1].tolist() == [k, k] and not y[:, :-1].any()
    else:
        assert (y == 1).all()
