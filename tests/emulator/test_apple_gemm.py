"""Judges: Apple's other matrix products, unmodified, against float64."""

import struct

import apple_kernels as ak
import numpy as np
import pytest
from apple_nax import assert_close, operands, tiles

from mlx_tensorops.testing import emulator

F, H, B = "float", "half", "bfloat16_t"
GEMM = ("utils.h", "steel/gemm/gemm.h", "steel/utils.h")
NAX = ("utils.h", "steel/gemm/gemm_nax.h", "steel/utils.h")
KERNELS = "steel/gemm/kernels/steel_gemm_"
TILE = 32
SHAPES = [(F, (False, True), (64, 32, 48)), (H, (False, False), (45, 70, 50))]
SHAPES += [(B, (True, True), (33, 40, 64)), (F, (True, False), (7, 65, 19))]
every_shape = pytest.mark.parametrize(("kind", "transposed", "shape"), SHAPES)


def flags(*values):
    return ", ".join(str(bool(value)).lower() for value in values)


def gemm_params(shape, lda, ldb, tile=(TILE, TILE, 16), strides=(0, 0, 0), n_dims=0):
    """struct GEMMParams of steel/gemm/params.h."""
    m, n, k = shape
    counts = (tiles(n, tile[1]), tiles(m, tile[0]))
    sizes = (m, n, k, lda, ldb, n, *counts, *strides, 0, k // tile[2], n_dims)
    return struct.pack("<8i3q3i4x", *sizes)


def alignment(shape, tile=(TILE, TILE, 16)):
    return {200 + i: size % tile[i] == 0 for i, size in enumerate(shape)}


def float64(x):
    return ak.float32(x).astype(np.float64)


def random(kind, *shape, seed=0):
    return ak.rounded(np.random.default_rng(seed).standard_normal(shape), kind)


@every_shape
@pytest.mark.parametrize("batched", [False, True])
def test_fused(apple, kind, transposed, shape, batched):
    """With a scaled matrix added; two batches of which the right operand has one."""
    m, n, k = shape
    name = f"gemm<{kind}, 32, 32, 16, 2, 2, {flags(*transposed)}, float>"
    library = apple(*GEMM, f"{KERNELS}fused.h", gemm=name)
    left, right, product = operands(kind, m, n, k, *transposed)
    # The kernel reads the matrix up to the end of its last tile of rows.
    source = random(kind, tiles(m, 32) * 32, n, seed=1)
    out = np.zeros((2 if batched else 1, m, n), left.dtype)
    left = np.stack([left, left[::-1]]) if batched else left[None]
    params = gemm_params(shape, left.shape[2], right.shape[1], strides=(0, 0, m * n), n_dims=1)
    addmm = struct.pack("<2iq2f", n, 1, 0, 0.5, 2.0)
    batch = {"batch_shape": np.array([2], np.int32)}
    batch["batch_strides"] = np.array([left[0].size, 0, 0], np.int64)
    constants = {10: batched, 100: True, 110: True, **alignment(shape)}
    ak.launch(library, "gemm", (tiles(n, 32), tiles(m, 32), len(out)), (32, 2, 2), A=left, B=right,
              C=source, D=out, params=params, addmm_params=addmm, constants=constants,
              **(batch if batched else {}))  # fmt: skip
    a, b = float64(left), float64(right).T if transposed[1] else float64(right)
    products = (a.transpose(0, 2, 1) if transposed[0] else a) @ b
    assert np.allclose(products[0], product)
    assert_close(out, 0.5 * products + 2 * float64(source[:m]), kind, 1e-5 + 2 * ak.ROUNDING[kind])


def test_rows_beyond_an_added_matrix_are_read(apple):
    """apply_epilogue_safe of steel/gemm/mma.h looks at columns only: a fault of Apple's."""
    library = apple(*GEMM, f"{KERNELS}fused.h", gemm="gemm<float, 32, 32, 16, 2, 2, false, false>")
    left, right, source = (random(F, *shape) for shape in ((45, 64), (64, 32), (45, 32)))
    params = gemm_params((45, 32, 64), 64, 32)
    constants = {10: False, 100: True, 110: False, **alignment((45, 32, 64))}
    buffers = {"A": left, "B": right, "C": source, "D": np.zeros((45, 32), np.float32)}
    addmm = struct.pack("<2iq2f", 32, 1, 0, 1, 1)
    with pytest.raises(emulator.Fault, match=r"device_out_of_bounds.*buffer 2 \(C\).*mma\.h:665"):
        ak.launch(library, "gemm", (1, 2, 1), (32, 2, 2), params=params, addmm_params=addmm,
                  constants=constants, **buffers)  # fmt: skip


@every_shape
@pytest.mark.parametrize("nax", [False, True])
def test_split_k(apple, kind, transposed, shape, nax):
    """Partial products of 32 columns each, then their sum; and one that adds a matrix."""
    (m, n, k), part = shape, 32
    k = 96 if nax else 90
    left, right, product = operands(kind, m, n, k, *transposed)
    tile = (64, 64, 32) if nax else (32, 32, 16)
    parts = tiles(k, part) if nax else k // part  # the last has the rest
    partial = np.zeros((parts, m, n), np.float32)
    counts = (tiles(n, tile[1]), tiles(m, tile[0]))
    params = struct.pack("<13i", m, n, k, left.shape[1], right.shape[1], n, *counts, parts, m * n,
                         part, 0, part // tile[2])  # fmt: skip
    headers = (*(NAX if nax else GEMM), f"{KERNELS}splitk{'_nax' * nax}.h")
    if nax:
        name = f"gemm_splitk_nax<{kind}, 64, 64, 32, 2, 2, {flags(*transposed)}, float>"
        grid, constants = (counts[0] * counts[1] * parts,), alignment((m, n), tile)
    else:
        aligned = flags(m % 32 == 0 and n % 32 == 0, k % 16 == 0)
        name = f"gemm_splitk<{kind}, float, 32, 32, 16, 2, 2, {flags(*transposed)}, {aligned}>"
        grid, constants = (*counts, parts), None
    library = apple(*headers, split=name)
    ak.launch(library, "split", grid, (32, 2, 2), A=left, B=right, C=partial, params=params,
              constants=constants)  # fmt: skip
    sums = {"accum": f"gemm_splitk_accum<float, {kind}>"}
    sums["axpby"] = f"gemm_splitk_accum_axpby<float, {kind}>"
    library = apple(*GEMM, f"{KERNELS}splitk.h", **sums)
    source, out = random(kind, m, n, seed=1), np.zeros((m, n), left.dtype)
    common = {"C_split": partial, "D": out, "k_partitions": parts, "partition_stride": m * n}
    ak.launch(library, "accum", (n, m), (8, 4), by="threads", ldd=n, **common)
    assert_close(out, product, kind)
    ak.launch(library, "axpby", (n, m), (8, 4), by="threads", ldd=n, C=source, ldc=n, fdc=1,
              alpha=0.5, beta=2.0, **common)  # fmt: skip
    assert_close(out, 0.5 * product + 2 * float64(source), kind, 1e-5 + 2 * ak.ROUNDING[kind])


@every_shape
@pytest.mark.parametrize("nax", [False, True])
def test_gather_rows(apple, kind, transposed, shape, nax):
    """Groups of rows (one of them empty), each times a matrix of its own."""
    m, n, k = shape
    transposed = (False, transposed[1])  # MLX gathers contiguous rows
    tile = (64, 64, 64) if nax else (32, 32, 16)
    suffix = "_nax" * nax
    name = f"gather_mm_rhs{suffix}<{kind}, {', '.join(map(str, tile))}, 2, 2, {flags(*transposed)}>"
    library = apple(*(NAX if nax else GEMM), f"{KERNELS}gather{suffix}.h", gather=name)
    groups = 4
    left, out = random(kind, m, k), np.zeros((m, n), ak.DTYPES[kind])
    right = random(kind, groups, *((n, k) if transposed[1] else (k, n)), seed=1)
    offsets = np.array([0, m // 3, m // 3, m - 2], np.int32)
    params = gemm_params(shape, k, right.shape[2], tile, (0, right[0].size, 0))
    constants = {200: False, **alignment(shape, tile)} | ({} if nax else {10: False})
    grid = (tiles(n, tile[1]), tiles(m, tile[0]) + groups)
    ak.launch(library, "gather", grid, (32, 2, 2), A=left, B=right, offsets=offsets, C=out,
              params=params, num_groups=groups, constants=constants)  # fmt: skip
    owner = np.searchsorted(offsets, np.arange(m), "right") - 1
    matrices = float64(right).transpose(0, 2, 1) if transposed[1] else float64(right)
    assert_close(out, np.einsum("mk,mkn->mn", float64(left), matrices[owner]), kind)


@every_shape
def test_gather(apple, kind, transposed, shape):
    """Pairs of matrices by their indices."""
    m, n, k = shape
    name = f"gather_mm<{kind}, 32, 32, 16, 2, 2, {flags(*transposed)}>"
    library = apple(*GEMM, f"{KERNELS}gather.h", gather=name)
    left = random(kind, 3, *((k, m) if transposed[0] else (m, k)))
    right = random(kind, 2, *((n, k) if transposed[1] else (k, n)), seed=1)
    pairs = np.array([[2, 0, 2], [0, 1, 1]], np.uint32)
    out = np.zeros((3, m, n), left.dtype)
    params = gemm_params(shape, left.shape[2], right.shape[2], strides=(1, 1, m * n))
    sides = {}
    for side, array in (("a", left), ("b", right)):
        sides |= {
            f"batch_ndim_{side}": 1,
            f"batch_shape_{side}": np.array(array.shape[:1], np.int32),
        }
        sides |= {f"batch_strides_{side}": ak.strides(array)[:1]}
    ak.launch(library, "gather", (tiles(n, 32), tiles(m, 32), 3), (32, 2, 2), A=left, B=right,
              C=out, lhs_indices=pairs[0], rhs_indices=pairs[1], params=params, **sides,
              constants={10: False, **alignment(shape)})  # fmt: skip
    a, b = (float64(x).transpose(0, 2, 1) if flag else float64(x)
            for x, flag in zip((left, right), transposed, strict=True))  # fmt: skip
    assert_close(out, a[pairs[0]] @ b[pairs[1]], kind)


@every_shape
@pytest.mark.parametrize("nax", [False, True])
@pytest.mark.parametrize("contiguous", [False, True])
def test_segments(apple, kind, transposed, shape, nax, contiguous):
    """Products over ranges of K, one of them empty."""
    m, n, k = shape
    k = 100
    tile = (64, 64, 64) if nax else (32, 32, 16)
    name = f"segmented_mm{'_nax' * nax}<{kind}, {', '.join(map(str, tile))}, 2, 2, "
    headers = (*(NAX if nax else GEMM), f"{KERNELS}segmented{'_nax' * nax}.h")
    library = apple(*headers, segments=f"{name}{flags(*transposed)}>")
    left, right, _ = operands(kind, m, n, k, *transposed)
    bounds = [0, 40, 40, 100]
    pairs = list(zip(bounds, bounds[1:], strict=False))
    segments = np.array(pairs if contiguous else bounds, np.uint32)
    out = np.zeros((3, m, n), left.dtype)
    params = gemm_params((m, n, k), left.shape[1], right.shape[1], tile, (0, 0, m * n))
    counts = (tiles(n, tile[1]), tiles(m, tile[0]), 3)
    # The kernel for matrix units has segments innermost.
    grid = (3, *counts[:2]) if nax else counts
    aligned = alignment((m, n), tile)
    ak.launch(library, "segments", grid, (32, 2, 2), A=left, B=right, segments=segments, C=out,
              params=params, constants={199: contiguous, **aligned})  # fmt: skip
    a = float64(left).T if transposed[0] else float64(left)
    b = float64(right).T if transposed[1] else float64(right)
    assert_close(out, np.stack([a[:, i:j] @ b[i:j] for i, j in pairs]), kind)


def test_two_kernels_of_one_name_are_refused(apple):
    """block_masked_gemm is there twice, with other template parameters."""
    name = "block_masked_gemm<float, bool, bool, 32, 32, 16, 2, 2, false, false, true, true>"
    with pytest.raises(emulator.CompileError, match="kernel block_masked_gemm is ambiguous"):
        apple(*GEMM, f"{KERNELS}masked.h", masked=name)


MATRICES = [(F, 64, 128), (H, 37, 99), (B, 130, 60)]
every_matrix = pytest.mark.parametrize(("kind", "n_out", "n_in"), MATRICES)
# Simdgroups, threads of a simdgroup, and elements of a thread, down and across the matrix.
LAYOUTS = {False: (4, 1, 1, 32, 4, 4), True: (1, 2, 8, 4, 4, 4)}
# gemv_t has barriers, for speed only, that threads beyond the last column do not reach.
DIVERGES = ("divergent_barrier", "divergent_simd_op", "barrier_with_exited_threads")


@every_matrix
@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_vector(apple, kind, n_out, n_in, transposed):
    """Two vectors times a matrix, plus a scaled vector; then matrices and vectors by indices."""
    name, layout = "gemv_t" if transposed else "gemv", LAYOUTS[transposed]
    numbers = ", ".join(map(str, layout))
    library = apple(*GEMM, "gemv.h", gemv=f"{name}<{kind}, {numbers}, false, true>",
                    gather=f"{name}_gather<{kind}, {numbers}>")  # fmt: skip
    block = layout[1] * layout[3] * layout[5] if transposed else layout[0] * layout[2] * layout[4]
    grid, group = (tiles(n_out, block), 1, 2), (32, layout[1], layout[0])
    # The constants are those of the wide kernels in the same header.
    common = {"allow": DIVERGES if transposed and n_out % block else ()}
    common["constants"] = {0: False, 1: False}
    matrices = random(kind, 2, *((n_in, n_out) if transposed else (n_out, n_in)))
    vectors, bias = random(kind, 3, n_in, seed=1), random(kind, n_out, seed=2)
    sizes = {"in_vec_size": n_in, "out_vec_size": n_out, "marix_ld": matrices.shape[2]}
    out = np.zeros((2, n_out), vectors.dtype)
    one, vector_step = np.array([1], np.int32), np.array([n_in], np.int64)
    ak.launch(library, "gemv", grid, group, mat=matrices, in_vec=vectors, bias=bias, out_vec=out,
              alpha=0.5, beta=2.0, batch_ndim=1, batch_shape=one, vector_batch_stride=vector_step,
              matrix_batch_stride=np.array([0], np.int64), bias_stride=1,
              bias_batch_stride=np.array([0], np.int64), **common, **sizes)  # fmt: skip
    a = float64(matrices).transpose(0, 2, 1) if transposed else float64(matrices)
    x = float64(vectors)
    expected = 0.5 * x[:2] @ a[0].T + 2 * float64(bias)
    assert_close(out, expected, kind, 1e-5 + 4 * ak.ROUNDING[kind])
    indices = np.array([[2, 0], [1, 0]], np.uint32)
    batches = {"vector_batch_ndim": 1, "vector_batch_shape": one, **common,
               "vector_batch_stride": vector_step, "matrix_batch_ndim": 1,
               "matrix_batch_shape": one,
               "matrix_batch_stride": np.array([matrices[0].size], np.int64)}  # fmt: skip
    ak.launch(library, "gather", grid, group, mat=matrices, in_vec=vectors, out_vec=out,
              batch_ndim=1, batch_shape=np.array([2], np.int32),
              index_batch_strides=np.ones(2, np.int64),
              vec_indices=indices[0], mat_indices=indices[1], alpha=1.0, beta=0.0, **sizes,
              **batches)  # fmt: skip
    assert_close(out, np.stack([a[1] @ x[2], a[0] @ x[0]]), kind)


@pytest.mark.parametrize(("kind", "n_out", "n_in"), [(F, 20, 64), (H, 33, 300), (B, 9, 1028)])
def test_matrix_few_vectors(apple, kind, n_out, n_in):
    library = apple(*GEMM, "gemv.h", wide=f"gemv_wide<{kind}, 4, 16>",
                    gather=f"gemv_wide_gather<{kind}, 4, 8>")  # fmt: skip
    matrices, vectors = random(kind, 2, n_out, n_in), random(kind, 6, n_in, seed=1)
    bias, out = random(kind, 6, n_out, seed=2), np.zeros((6, n_out), vectors.dtype)
    zero, one = np.array([0], np.int64), np.array([1], np.int32)
    sizes = {"in_vec_size": n_in, "out_vec_size": n_out, "matrix_ld": n_in, "vector_ld": n_in}
    ak.launch(library, "wide", (1, tiles(n_out, 4), 1), (64,), mat=matrices, in_vec=vectors,
              bias=bias, out_vec=out, M=6, alpha=0.5, beta=2.0, batch_ndim=1, batch_shape=one,
              vector_batch_stride=zero, matrix_batch_stride=zero, bias_batch_stride=zero,
              bias_ld=n_out, bias_fd=1, constants={0: False, 1: True}, **sizes)  # fmt: skip
    x, a = float64(vectors), float64(matrices)
    assert_close(out, 0.5 * x @ a[0].T + 2 * float64(bias), kind)
    out = np.zeros((2, 3, n_out), vectors.dtype)
    ak.launch(library, "gather", (1, tiles(n_out, 4), 2), (32,), mat=matrices, in_vec=vectors,
              out_vec=out, M=3, batch_ndim=1, batch_shape=np.array([2], np.int32),
              index_batch_strides=np.ones(2, np.int64), vector_batch_ndim=1, vector_batch_shape=one,
              vector_batch_stride=np.array([3 * n_in], np.int64), matrix_batch_ndim=1,
              matrix_batch_shape=one, matrix_batch_stride=np.array([n_out * n_in], np.int64),
              vec_indices=np.array([1, 0], np.uint32), mat_indices=np.array([0, 1], np.uint32),
              constants={0: False, 1: False}, **sizes)  # fmt: skip
    assert_close(out, np.stack([x[3:] @ a[0].T, x[:3] @ a[1].T]), kind)


@pytest.mark.parametrize(("kind", "n_out", "n_in"), [(F, 64, 128), (H, 36, 99), (B, 128, 60)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", ["bool", "float"])
def test_masked_matrix_vector(apple, kind, n_out, n_in, transposed, mask):
    """Blocks of 64 by 64 of the matrix, and of 64 elements of the vectors."""
    mask_kind = kind if mask == "float" else "bool"
    layout = "2, 1, 4, 8, 4, 8" if not transposed else "1, 1, 8, 4, 8, 4"
    block = 32 if not transposed else 16
    edge = 64
    name = "gemv_t_masked" if transposed else "gemv_masked"
    name += f"<{kind}, {mask_kind}, {mask_kind}, {layout}, false>"
    library = apple(*GEMM, "gemv_masked.h", masked=name)
    matrix = random(kind, *((n_in, n_out) if transposed else (n_out, n_in)))
    vector, out = random(kind, n_in, seed=1), np.ones(n_out, matrix.dtype)
    rows, columns = tiles(n_out, edge), tiles(n_in, edge)
    numbers = np.random.default_rng(5)
    masks = [
        numbers.integers(0, 3, shape) / 2 if mask == "float" else numbers.random(shape) < 0.7
        for shape in ((rows,), (rows, columns), (columns,))
    ]
    held = [ak.rounded(x, kind) if mask == "float" else x for x in masks]
    stored = held[1].T.copy() if transposed else held[1]
    # Of the result, the matrix and the vector: along the one and along the other axis.
    steps = [1, 1, 1, columns, 1, 1] if not transposed else [1, 1, 1, rows, 1, 1]
    zero = np.array([0], np.int64)
    group = (32, 1, 2) if not transposed else (32, 1, 1)
    ak.launch(library, "masked", (tiles(n_out, block),), group, mat=matrix, in_vec=vector,
              out_vec=out, in_vec_size=n_in, out_vec_size=n_out, marix_ld=matrix.shape[1],
              batch_ndim=1, batch_shape=np.array([1], np.int32), vector_batch_stride=zero,
              matrix_batch_stride=zero, out_mask=held[0], mat_mask=stored, vec_mask=held[2],
              mask_strides=np.array(steps, np.int32), mask_batch_strides=np.zeros(3, np.int64),
              allow=DIVERGES if transposed and n_out % block else ())  # fmt: skip
    full = np.kron(masks[1] * masks[2], np.ones((edge, edge)))[:n_out, :n_in]
    a = (float64(matrix).T if transposed else float64(matrix)) * full
    expected = np.repeat(masks[0], edge)[:n_out] * (a @ float64(vector))
    assert_close(out, expected, kind, 1e-5 + 4 * ak.ROUNDING[kind])
