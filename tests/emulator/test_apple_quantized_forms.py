"""Judges: every form of Apple's quantized products, affine, mxfp4, mxfp8 and nvfp4, unmodified."""

from dataclasses import dataclass, replace

import apple_kernels as ak
import numpy as np
import pytest
from apple_nax import tiles
from small_floats import e2m1, e4m3, packed

from mlx_tensorops.testing import emulator

F, H, B = "float", "half", "bfloat16_t"
STEEL = ("utils.h", "steel/gemm/gemm.h", "quantized_utils.h")
NAX = ("utils.h", "steel/gemm/gemm_nax.h", "quantized_utils.h")
# Family of kernels, type, group size, bits.
FORMATS = [("affine", F, 64, 4), ("affine", H, 32, 5), ("affine", B, 32, 8)]
FORMATS += [("fp", F, 32, 4), ("fp", B, 32, 8), ("fp", H, 16, 4)]
every_format = pytest.mark.parametrize("row", FORMATS, ids=lambda row: "-".join(map(str, row)))


class Weights:
    """Matrices in a format, their values, and the arguments that they are."""

    def __init__(self, row, *shape, seed=0):
        family, self.kind, group, bits = row
        random = np.random.default_rng(seed + bits)
        codes = random.integers(0, 2**bits, shape)
        groups = (*shape[:-1], shape[-1] // group)
        if family == "affine":
            scales = ak.rounded(random.uniform(0.5, 1.5, groups) / 2**bits, self.kind)
            biases = ak.rounded(-random.uniform(0.25, 0.75, groups), self.kind)
            scale, bias = (ak.float32(x).astype(np.float64) for x in (scales, biases))
            self.arguments = {"scales": scales, "biases": biases}
        else:
            codes[codes & 127 == 127] = 0
            low, high = (120, 130) if group == 32 else (40, 90)
            scales = random.integers(low, high, groups).astype(np.uint8)
            scale = 2.0 ** (scales.astype(int) - 127) if group == 32 else e4m3()[scales]
            bias = np.zeros(groups)
            self.arguments = {"scales": scales}
        scale, bias = (np.repeat(x, group, axis=-1) for x in (scale, bias))
        values = codes if family == "affine" else (e2m1() if bits == 4 else e4m3())[codes]
        self.values = values * scale + bias
        self.magnitudes = np.abs(values * scale) + np.abs(bias)
        words = packed(codes.astype(np.int64), bits)
        self.arguments["w"] = words
        self.steps = {"w_strides": words[0].nbytes // 4, "s_strides": scales[0].size}
        self.steps["b_strides"] = scales[0].size


@dataclass(frozen=True)
class Form:
    """How a kernel is launched: template arguments, the shape, the grid and the threadgroup."""

    tail: str
    shape: tuple[int, int, int]
    tile: tuple[int, int]
    group: tuple[int, ...]
    transposed: bool = True
    is_nax: bool = False

    def grid(self, *more):
        m, n, _ = self.shape
        counts = (tiles(m, self.tile[0]), tiles(n, self.tile[1]))
        return (*(counts[::-1] if self.group == TGP else counts), *more)


TGP = (32, 2, 2)
VECTORS = {
    "qmv": Form("false", (2, 11, 256), (1, 8), (32, 2)),
    "qmv_fast": Form("false", (2, 16, 1024), (1, 8), (32, 2)),
    "qmv_quad": Form("64, false", (3, 128, 64), (1, 64), (32,)),
    "qmv_wide": Form("4, 16, false", (6, 10, 256), (4, 4), (32, 2)),
    "qvm": Form("false", (2, 192, 96), (1, 64), (32, 2), False),
}
MATRICES = {
    "qmm_t": Form("false, false", (45, 70, 128), (32, 32), TGP),
    "qmm_n": Form("false", (40, 128, 96), (32, 32), TGP, False),
    "qmm_n_nax": Form("false, 64, 64, 64, 2, 2", (40, 128, 128), (64, 64), TGP, False, True),
}
GATHERS = {
    "gather_qmv": Form("", (1, 11, 256), (1, 8), (32, 2)),
    "gather_qmv_fast": Form("", (1, 16, 1024), (1, 8), (32, 2)),
    "gather_qvm": Form("", (1, 192, 96), (1, 64), (32, 2), False),
    "gather_qmm_t": Form("false", (20, 70, 128), (32, 32), TGP),
    "gather_qmm_n": Form("", (20, 128, 96), (32, 32), TGP, False),
    "gather_qmm_t_nax": Form("false", (20, 70, 128), (64, 64), TGP, True, True),
    "gather_qmm_n_nax": Form("", (20, 128, 128), (64, 64), TGP, False, True),
}
ROWS = {
    "gather_qmm_rhs": Form("32, 32, 32, 2, 2", (45, 64, 128), (32, 32), TGP),
    "gather_qmm_rhs_nax": Form("64, 64, 64, 2, 2", (90, 64, 128), (64, 64), TGP, True, True),
}


def prepare(apple, row, name, form, tail=None):
    """The library with the kernel, and a function that launches it with what it takes."""
    family, kind, group, bits = row
    tail = form.tail if tail is None else tail
    function = f"{family}_{name}<{', '.join(filter(None, (kind, str(group), str(bits), tail)))}>"
    header = f"{'fp_' if family == 'fp' else ''}quantized{'_nax' * form.is_nax}.h"
    library = apple(*(NAX if form.is_nax else STEEL), header, kernel=function)
    _, n, k = form.shape
    # align_M, align_N and align_K, for the kernels that ask.
    constants = {200: False, 201: n % form.tile[1] == 0, 202: k % form.tile[0] == 0}
    known = {argument.name for argument in library.pipeline("kernel", constants).arguments}

    def launch(grid, **values):
        values = {name: value for name, value in values.items() if name in known}
        ak.launch(library, "kernel", grid, form.group, constants=constants, **values)

    return launch


def inputs(row, *shape):
    return ak.rounded(np.random.default_rng(9).standard_normal(shape), row[1])


def check(y, x, values, magnitudes, kind):
    """Sums in float32; the weights, and what they are made of, rounded to the working type."""
    x = ak.float32(x).astype(np.float64)
    size = np.abs(x) @ magnitudes
    budget = (4 * np.sqrt(x.shape[-1]) * ak.ROUNDING[F] + 3 * ak.ROUNDING[kind]) * size
    ak.assert_within(y, x @ values, budget, kind)


def narrowed(form, row):
    """Groups of 16 have half as many columns in a threadgroup of qvm."""
    is_qvm = form.tile == (1, 64) and not form.transposed
    return replace(form, tile=(1, 32)) if is_qvm and row[2] == 16 else form


def oriented(array, form):
    return np.swapaxes(array, -1, -2) if form.transposed else array


def stored(form):
    _, n, k = form.shape
    return (n, k) if form.transposed else (k, n)


REFUSED = {
    # Never instantiated by MLX: it hands 14 arguments to a function that takes 13.
    ("fp", "qmm_n_nax"): "requires 13 arguments, but 14 were provided",
    ("fp", "gather_qmm_n_nax"): "requires 13 arguments, but 14 were provided",
}


@pytest.mark.parametrize(("family", "name"), REFUSED)
def test_refused(apple, family, name):
    row = next(row for row in FORMATS if row[0] == family)
    form = Form(NAX_TAILS[name], (1, 1, 64), (1, 1), (32,), is_nax=True)
    with pytest.raises(emulator.CompileError, match=REFUSED[family, name]):
        prepare(apple, row, name, form)


NAX_TAILS = {"qmm_n_nax": "false", "gather_qmm_n_nax": ""}


def pairs_of(*names):
    pairs = [(name, row) for name in names for row in FORMATS if (row[0], name) not in REFUSED]
    # MLX takes it for widths that are powers of two.
    pairs = [(name, row) for name, row in pairs if name != "qmv_quad" or row[3] != 5]
    ids = [f"{name}-{'-'.join(map(str, row))}" for name, row in pairs]
    return pytest.mark.parametrize(("name", "row"), pairs, ids=ids)


@pairs_of(*VECTORS, *MATRICES)
def test_products(apple, row, name):
    form = narrowed((VECTORS | MATRICES)[name], row)
    m, n, k = form.shape
    weights, x = Weights(row, 1, *stored(form)), inputs(row, m, k)
    y = np.zeros((m, n), x.dtype)
    launch = prepare(apple, row, name, form)
    launch(form.grid(), x=x, y=y, in_vec_size=k, out_vec_size=n, K=k, N=n, M=m,
           **weights.arguments)  # fmt: skip
    check(y, x, *(oriented(a[0], form) for a in (weights.values, weights.magnitudes)), row[1])


@pairs_of(*GATHERS)
def test_gathers(apple, row, name):
    """Products of pairs of an input and a matrix, by their indices."""
    form = narrowed(GATHERS[name], row)
    m, n, k = form.shape
    weights, x = Weights(row, 3, *stored(form)), inputs(row, 2, m, k)
    pairs = np.array([[1, 0, 1, 1], [2, 0, 0, 1]], np.uint32)
    y = np.zeros((4, m, n), x.dtype)
    one = np.array([1], np.int64)
    steps = {name: np.array([step], np.int64) for name, step in weights.steps.items()}
    launch = prepare(apple, row, name, form)
    launch(form.grid(4), x=x, y=y, in_vec_size=k, out_vec_size=n, K=k, N=n, M=m,
           lhs_indices=pairs[0], rhs_indices=pairs[1], x_batch_ndims=1,
           x_shape=np.array([2, m], np.int32), x_strides=np.array([m * k], np.int64),
           w_batch_ndims=1, w_shape=np.array([3], np.int32), batch_ndims=1,
           batch_shape=np.array([4], np.int32), lhs_strides=one, rhs_strides=one, **steps,
           **weights.arguments)  # fmt: skip
    for i, (left, right) in enumerate(pairs.T):
        both = (oriented(a[right], form) for a in (weights.values, weights.magnitudes))
        check(y[i], x[left], *both, row[1])


@every_format
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_gathered_rows(apple, row, name, transposed):
    """Groups of rows (one of them empty), each times a matrix of its own."""
    form = ROWS[name]
    m, n, k = form.shape
    weights = Weights(row, 4, *((n, k) if transposed else (k, n)))
    x, y = inputs(row, m, k), np.zeros((m, n), ak.DTYPES[row[1]])
    offsets = np.array([0, m // 3, m // 3, m - 2], np.int32)
    launch = prepare(apple, row, name, form, f"{form.tail}, {str(transposed).lower()}")
    grid = (tiles(n, form.tile[1]), tiles(m, form.tile[0]) + 4)
    launch(grid, x=x, y=y, M=m, N=n, K=k, offsets=offsets, num_groups=4, **weights.arguments)
    for i, (start, end) in enumerate(zip(offsets, [*offsets[1:], m], strict=True)):
        if start == end:
            continue
        both = (weights.values[i], weights.magnitudes[i])
        check(y[start:end], x[start:end], *(a.T if transposed else a for a in both), row[1])


@every_format
def test_split_products(apple, row):
    """K in parts, whose products are added by another kernel of MLX."""
    _, kind, group, _ = row
    k, n = 256, 192
    form = narrowed(Form("4", (1, n, k), (1, 64), (32, 2), False), row)
    weights, x = Weights(row, 1, k, n), inputs(row, 1, k)
    y = np.zeros((4, 1, n), x.dtype)
    steps = {name: np.array([step // 4], np.int64) for name, step in weights.steps.items()}
    prepare(apple, row, "qvm_split_k", form)(
        form.grid(4), x=x, y=y, in_vec_size=k // 4, out_vec_size=n, final_block_size=k // 4,
        x_batch_ndims=1, x_shape=np.array([4, 1], np.int32), x_strides=np.array([k // 4], np.int64),
        w_batch_ndims=1, w_shape=np.array([4], np.int32), **steps, **weights.arguments,
    )  # fmt: skip
    for i in range(4):
        part = slice(i * k // 4, (i + 1) * k // 4)
        check(y[i], x[:, part], weights.values[0, part], weights.magnitudes[0, part], kind)
    m, n, k = 40, 64, 256
    form = Form("false", (m, n, k), (32, 32), TGP)
    weights, x = Weights(row, 1, n, k), inputs(row, m, k)
    parts = np.zeros((2, m, n), np.float32)
    prepare(apple, row, "qmm_t_splitk", form)(
        form.grid(2), x=x, y=parts, K=k, N=n, M=m, k_partition_size=k // 2,
        split_k_partition_stride=m * n, **weights.arguments,
    )  # fmt: skip
    for i in range(2):
        part = slice(i * k // 2, (i + 1) * k // 2)
        size = np.abs(ak.float32(x[:, part]).astype(np.float64)) @ weights.magnitudes[0, :, part].T
        expected = ak.float32(x[:, part]).astype(np.float64) @ weights.values[0, :, part].T
        ak.assert_within(parts[i], expected, (3 * ak.ROUNDING[kind] + 1e-5) * size, F)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize(("kind", "group"), [(F, 32), (H, 64), (B, 128)])
def test_affine_quantize(apple, kind, group, bits):
    instances = {n: f"affine_{n}<{kind}, {group}, {bits}>" for n in ("quantize", "dequantize")}
    library = apple(*STEEL, "quantized.h", **instances)
    w = ak.rounded(np.random.default_rng(bits).standard_normal((6, 256)), kind)
    out = np.zeros((6, 256 * bits // 8), np.uint8)
    scales, biases = (np.zeros((6, 256 // group), w.dtype) for _ in range(2))
    threads = w.size * 32 // group
    ak.launch(library, "quantize", (threads, 1), (32, 1), by="threads", w=w, out=out,
              scales=scales, biases=biases)  # fmt: skip
    back = np.zeros_like(w)
    per_thread = 8 if bits in (3, 5) else 4 if bits == 6 else 8 // bits
    ak.launch(library, "dequantize", (w.size // per_thread, 1), (32, 1), by="threads", w=out,
              scales=scales, biases=biases, out=back)  # fmt: skip
    values = ak.float32(w).astype(np.float64)
    scale, bias = (np.repeat(ak.float32(x).astype(np.float64), group, 1) for x in (scales, biases))
    stream = np.unpackbits(out, axis=1, bitorder="little").reshape(6, 256, bits)
    codes = (stream * (1 << np.arange(bits))).sum(-1)
    ak.assert_within(
        back, codes * scale + bias, 2 * ak.ROUNDING[kind] * np.abs(codes * scale), kind
    )
    # Half a step, and what the rounding of scale and bias moves the grid; at the ends of the range,
    # which may be a little short, up to one.
    moved = ak.ROUNDING[kind] * (np.abs(codes * scale) + np.abs(bias))
    at_end = (codes == 0) | (codes == 2**bits - 1)
    steps = np.where(at_end, 1, 0.5) * (1.001 if bits > 1 else np.inf)
    assert (np.abs(codes * scale + bias - values) <= steps * np.abs(scale) + 2 * moved).all()
    groups = values.reshape(6, -1, group)
    expected = (groups.max(-1) - groups.min(-1)) / (2**bits - 1)
    # The step is stretched so that 0 or an end of the range is met.
    close = np.abs(np.abs(ak.float32(scales)) / expected - 1)
    assert (close < (1e-2 if bits == 1 else 1 / (2**bits - 2))).all()


@pytest.mark.parametrize(("kind", "group", "bits"), [(F, 32, 4), (H, 32, 8), (B, 16, 4)])
@pytest.mark.parametrize("has_global", [False, True])
def test_fp_quantize(apple, kind, group, bits, has_global):
    flag = f"{str(has_global and group == 16).lower()}"
    names = ("quantize", "dequantize", "quantize_dequantize")
    instances = {name: f"fp_{name}<{kind}, {group}, {bits}, {flag}>" for name in names}
    library = apple(*STEEL, "fp_quantized.h", **instances)
    w = ak.rounded(np.random.default_rng(bits).standard_normal((4, 128)), kind)
    out, scales = np.zeros((4, 128 * bits // 8), np.uint8), np.zeros((4, 128 // group), np.uint8)
    values = ak.float32(w).astype(np.float64)
    scale_of_all = {"global_scale": np.array([np.abs(values).max()], np.float32)}
    run = {"by": "threads", **scale_of_all}
    ak.launch(library, "quantize", (w.size, 1), (32, 1), w=w, out=out, scales=scales, **run)
    back, direct = np.zeros_like(w), np.zeros_like(w)
    n = w.size * bits // 8
    ak.launch(library, "dequantize", (n, 1), (32, 1), w=out, scales=scales, out=back, **run)
    ak.launch(library, "quantize_dequantize", (w.size, 1), (32, 1), w=w, out=direct, **run)
    codes = np.unpackbits(out, axis=1, bitorder="little").reshape(4, 128, bits)
    codes = (codes * (1 << np.arange(bits))).sum(-1)
    table = e2m1() if bits == 4 else e4m3()
    factor = 2.0 ** (scales.astype(int) - 127) if group == 32 else e4m3()[scales]
    if flag == "true":
        factor = factor * (float(scale_of_all["global_scale"][0]) / (448 * 6))
    decoded = table[codes] * np.repeat(factor, group, 1)
    ak.assert_within(back, decoded, 4 * ak.ROUNDING[F] * np.abs(decoded), kind)
    ak.assert_within(direct, decoded, 4 * ak.ROUNDING[F] * np.abs(decoded), kind)
    # No other code is nearer, apart from ties and what a scale that was rounded down cuts off.
    magnitudes = np.unique(np.abs(table[np.isfinite(table)]))
    scaled = np.abs(values) / np.repeat(factor, group, 1)
    nearest = np.abs(np.minimum(scaled, magnitudes[-1])[..., None] - magnitudes).min(-1)
    got = np.abs(np.minimum(scaled, magnitudes[-1]) - np.abs(table[codes]))
    assert (got <= nearest + 1e-5 * scaled).all()
