"""Judges: Apple's kernels that gather and scatter, unmodified, against NumPy."""

import apple_kernels as ak
import numpy as np
import pytest

from mlx_tensorops.testing import emulator

HEADERS = ("utils.h", "atomic.h", "reduction/ops.h", "indexing/indexing.h", "indexing/gather.h")
HEADERS += ("indexing/gather_front.h", "indexing/gather_axis.h", "indexing/scatter.h")
HEADERS += ("indexing/scatter_axis.h", "indexing/masked_scatter.h")
# gather and scatter take any number of index arrays: MLX writes such kernels for each.
OWN = """
[[kernel]] void gather2(const device float* src, device float* out,
    const constant int* src_shape, const constant int64_t* src_strides,
    const constant size_t& src_ndim, const constant int* slice_sizes, const constant int* axes,
    const constant int* idx_shapes, const constant int64_t* idx_strides,
    const constant bool* idx_contigs, const constant int& idx_ndim,
    const device int* idx0, const device int* idx1,
    uint3 index [[thread_position_in_grid]], uint3 grid_dim [[threads_per_grid]]) {
  Indices<int, 2> indices{{{idx0, idx1}}, idx_shapes, idx_strides, idx_contigs, idx_ndim};
  gather_impl<float, int, 2, 2, int64_t>(src, out, src_shape, src_strides, src_ndim, slice_sizes,
      axes, indices, index, grid_dim);
}
template <typename T, typename Op>
[[kernel]] void scatter1(const device T* updates, device mlx_atomic<T>* out,
    const constant int* upd_shape, const constant int64_t* upd_strides,
    const constant size_t& upd_ndim, const constant size_t& upd_size,
    const constant int* out_shape, const constant int64_t* out_strides,
    const constant size_t& out_ndim, const constant int* axes, const constant size_t& idx_size,
    const constant int* idx_shapes, const constant int64_t* idx_strides,
    const constant bool* idx_contigs, const constant int& idx_ndim, const device int* idx0,
    uint2 gid [[thread_position_in_grid]]) {
  Indices<int, 1> indices{{{idx0}}, idx_shapes, idx_strides, idx_contigs, idx_ndim};
  scatter_impl<T, int, Op, 1, true, 2, int64_t>(updates, out, upd_shape, upd_strides, upd_ndim,
      upd_size, out_shape, out_strides, out_ndim, axes, idx_size, indices, gid);
}
"""
UPDATES = {
    "none": ("None", None),
    "add": ("Sum<T>", np.add),
    "multiply": ("Prod<T>", np.multiply),
    "least": ("Min<T>", np.minimum),
    "most": ("Max<T>", np.maximum),
}
TYPES = {"float": np.float32, "half": np.float16, "int": np.int32, "uint8_t": np.uint8}


@pytest.fixture(scope="module")
def library(apple):
    instances = {
        "front": "gather_front<float, int, int64_t, 4>",
        "front_unsigned": "gather_front<half, uint, int, 2>",
        "masked": "masked_assign_impl<float, true>",
        "masked_strided": "masked_assign_impl<float, false>",
    }
    for contiguous in ("true", "false"):
        instances[f"axis_{contiguous}"] = (
            f"gather_axis<float, int, int64_t, {contiguous}, {contiguous}>"
        )
    for op, (name, _) in UPDATES.items():
        for kind in TYPES:
            op_name = name.replace("T", kind)
            instances |= {
                f"scatter_{op}_{kind}": f"scatter1<{kind}, {op_name}>",
                f"scatter_axis_{op}_{kind}": (
                    f"scatter_axis<{kind}, int, int64_t, {op_name}, true, true>"
                ),
            }
    for n_dims in (1, 2, 3, 4):
        instances[f"slice_{n_dims}"] = (
            f"slice_update_op_impl<float, int64_t, Sum<float>, false, false, false, 1, {n_dims}>"
        )
    instances["slice_rows"] = (
        "slice_update_op_impl<float, int64_t, Sum<float>, true, true, false, 2, 1>"
    )
    include = ak.include_folder()
    return emulator.compile(
        ak.source(*HEADERS) + OWN, include_dirs=[include], instantiations=instances
    )


@pytest.fixture(autouse=True)
def _swept(apple):
    """Marks the tests as judges, to run under the policies of the sweep."""


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def axes(array):
    return np.array(array.shape, np.int32), ak.strides(array)


def test_gather_front(library):
    src, indices = floats(7, 10), np.array([3, -1, 0, 6, 3], np.int32)
    out = np.zeros((5, 10), np.float32)
    ak.launch(library, "front", (3, 5), (2, 2), by="threads", src=src, indices=indices, out=out,
              stride=10, size=7)  # fmt: skip
    assert (out == src[indices]).all()
    out = np.zeros((5, 10), np.float16)
    ak.launch(library, "front_unsigned", (5, 5), (2, 2), by="threads", src=src.astype(np.float16),
              indices=(indices % 7).astype(np.uint32), out=out, stride=10, size=7)  # fmt: skip
    assert (out == src.astype(np.float16)[indices]).all()


@pytest.mark.parametrize("contiguous", [True, False])
def test_gather_axis(library, contiguous):
    """take_along_axis on the middle axis of three."""
    src, indices = floats(3, 6, 5), np.random.default_rng(1).integers(-6, 6, (3, 4, 5))
    src_held = (
        src if contiguous else np.ascontiguousarray(src.transpose(2, 1, 0)).transpose(2, 1, 0)
    )
    held = indices.astype(np.int32)
    held = held if contiguous else np.asfortranarray(held)
    out = np.zeros((3, 4, 5), np.float32)
    without = [0, 2]
    ak.launch(library, f"axis_{str(contiguous).lower()}", (5, 4, 3), (2, 2, 2), by="threads",
              src=src_held.ravel("K"), indices=held.ravel("K"), out=out,
              shape=np.array([3, 5], np.int32), src_strides=ak.strides(src_held)[without],
              idx_strides=ak.strides(held)[without], ndim=2, axis=1, axis_size=6,
              src_ax_stride=ak.strides(src_held)[1], idx_ax_stride=ak.strides(held)[1])  # fmt: skip
    assert (out == np.take_along_axis(src, indices, 1)).all()


def test_gather(library):
    """Two index arrays of two axes, on axes 0 and 2 of three; slices along the middle one."""
    src = floats(5, 4, 6)
    random = np.random.default_rng(2)
    first, second = (random.integers(-n, n, (3, 2)).astype(np.int32) for n in (5, 6))
    out = np.zeros((3, 2, 4), np.float32)
    shape, steps = axes(src)
    both = [np.array([3, 2] * 2, np.int32), np.array([2, 1] * 2, np.int64)]
    ak.launch(library, "gather2", (3, 2, 4), (2, 2, 2), by="threads", src=src, out=out,
              src_shape=shape, src_strides=steps, src_ndim=3,
              slice_sizes=np.array([1, 4, 1], np.int32), axes=np.array([0, 2], np.int32),
              idx_shapes=both[0], idx_strides=both[1], idx_contigs=np.ones(2, bool), idx_ndim=2,
              idx0=first, idx1=second)  # fmt: skip
    assert (out == src[first, :, second]).all()


def updated(base, op, indices, updates):
    expected = base.astype(np.float64)
    if op == "none":
        expected[indices] = updates
    else:
        UPDATES[op][1].at(expected, indices, updates)
    return expected


def numbers(kind, *shape, seed=0):
    """Small whole numbers, whose sums and products are exact in every type."""
    return np.random.default_rng(seed).integers(1, 4, shape).astype(TYPES[kind])


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("op", UPDATES)
def test_scatter(library, op, kind):
    """Rows of 5 into a table, most of them more than once."""
    unique = np.array([4, 0, -1], np.int32)
    indices = unique if op == "none" else np.array([4, 0, -1, 4, 4, 1, 0], np.int32)
    out, updates = numbers(kind, 6, 5), numbers(kind, indices.size, 5, seed=1)
    expected = updated(out, op, indices, updates)
    shape, steps = axes(out)
    upd_shape, upd_strides = np.array([indices.size, 1, 5], np.int32), np.array([5, 5, 1], np.int64)
    ak.launch(library, f"scatter_{op}_{kind}", (5, -(-indices.size // 2)), (2, 2), by="threads",
              updates=updates, out=out, upd_shape=upd_shape, upd_strides=upd_strides, upd_ndim=3,
              upd_size=5, out_shape=shape, out_strides=steps, out_ndim=2,
              axes=np.array([0], np.int32), idx_size=indices.size,
              idx_shapes=np.array([indices.size], np.int32), idx_strides=np.array([1], np.int64),
              idx_contigs=np.ones(1, bool), idx_ndim=1, idx0=indices)  # fmt: skip
    assert (out == expected).all()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("op", UPDATES)
def test_scatter_axis(library, op, kind):
    """put_along_axis on the middle axis of three."""
    out, updates = numbers(kind, 2, 8, 3), numbers(kind, 2, 5, 3, seed=1)
    random = np.random.default_rng(3)
    indices = np.stack([random.permutation(8)[:5] - 4 for _ in range(6)], -1)
    indices = indices.reshape(5, 2, 3).transpose(1, 0, 2).astype(np.int32)
    if op != "none":
        indices[:, 1] = indices[:, 3]
    grid = np.meshgrid(np.arange(2), np.arange(5), np.arange(3), indexing="ij")
    expected = updated(out, op, (grid[0], indices, grid[2]), updates)
    held = np.ascontiguousarray(indices)
    steps = ak.strides(held)[[0, 2]]
    ak.launch(library, f"scatter_axis_{op}_{kind}", (3, 5, 2), (2, 2, 2), by="threads",
              upd=updates, indices=held, out=out, shape=np.array([2, 3], np.int32),
              upd_strides=steps, idx_strides=steps, ndim=2, axis=1, out_axis_size=8,
              upd_ax_stride=3, idx_ax_stride=3)  # fmt: skip
    assert (out == expected).all()


@pytest.mark.parametrize("strided", [False, True])
def test_masked_scatter(library, strided):
    mask = np.random.default_rng(4).random((2, 9)) < 0.5
    src, out = floats(2, 9), floats(2, 9, seed=1)
    expected = out.copy()
    for row in range(2):
        expected[row, mask[row]] = src[row, : mask[row].sum()]
    offsets = np.cumsum(mask, axis=1) - mask
    held = np.asfortranarray(src) if strided else src
    shape, steps = axes(held)
    ak.launch(library, "masked_strided" if strided else "masked", (18,), (4,), by="threads",
              mask=mask, scatter_offsets=offsets.astype(np.uint32), src=held.ravel("K"), out=out,
              src_shapes=shape, src_strides=steps, src_ndim=2, src_batch_size=9,
              mask_batch_size=9)  # fmt: skip
    assert (out == expected).all()


@pytest.mark.parametrize("n_dims", [1, 2, 3, 4])
def test_slice_update(library, n_dims):
    """out[..., 1::2] += updates, the update transposed."""
    shape = (2, 3, 4, 5)[-n_dims:]
    out = floats(*[2 * n + 1 for n in shape], seed=5)
    updates = floats(*shape[::-1], seed=6).transpose()
    expected = out.copy()
    view = expected[tuple(slice(1, 2 * n + 1, 2) for n in shape)]
    view += updates
    steps, offset = 2 * ak.strides(out), int(ak.strides(out).sum())
    grid = (shape[-1], shape[-2] if n_dims > 1 else 1, int(np.prod(shape[:-2])))
    ak.launch(library, f"slice_{n_dims}", grid, (2, 2, 1), by="threads", updates=updates.ravel("K"),
              out=out, update_shape=np.array(shape, np.int32), update_strides=ak.strides(updates),
              update_ndim=n_dims, update_size=updates.size, output_strides=steps,
              output_offset=offset)  # fmt: skip
    assert (out == expected).all()


def test_slice_update_of_rows(library):
    out, updates = floats(40), floats(16, seed=1)
    expected = out.copy()
    expected[8:24] += updates
    one = np.array([1], np.int64)
    ak.launch(library, "slice_rows", (8, 1, 1), (4,), by="threads", updates=updates, out=out,
              update_shape=np.array([16], np.int32), update_strides=one, update_ndim=1,
              update_size=16, output_strides=one, output_offset=8)  # fmt: skip
    assert (out == expected).all()
