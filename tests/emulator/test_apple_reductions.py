"""Judges: Apple's reductions, scans, sorts and losses, unmodified, against float64."""

import apple_kernels as ak
import numpy as np
import pytest

REDUCE = ("utils.h", "atomic.h", "reduction/ops.h", "reduce_utils.h", "reduce.h")
F, H, B = "float", "half", "bfloat16_t"
# Which reduction, of which type, into which, and what it is.
OPS = {
    "sum": (F, F, "Sum<float>", np.sum),
    "sum16": (B, F, "Sum<float>", np.sum),
    "prod": (F, F, "Prod<float>", np.prod),
    "min": (H, H, "Min<half>", np.min),
    "max": ("int", "int", "Max<int>", np.max),
    "and": ("bool", "bool", "And<bool>", np.all),
    "or": ("bool", "bool", "Or<bool>", np.any),
}
DTYPES = {**ak.DTYPES, "int": np.int32, "bool": bool}
OUTER, ROWS, COLUMNS = 3, 40, 70


@pytest.fixture(scope="module")
def library(apple):
    instances = {}
    for op, (kind, into, name, _) in OPS.items():
        types = f"{kind}, {into}, {name}"
        instances |= {f"{f}_{op}": f"{f}<{types}>" for f in ("all_reduce", "row_reduce_simple")}
        for form in ("row_reduce_small", "row_reduce_looped", "col_reduce_small"):
            instances |= {f"{form}{n}_{op}": f"{form}<{types}, int64_t, {n}>" for n in (1, 2, 5)}
        instances[f"col_reduce_longcolumn1_{op}"] = f"col_reduce_longcolumn<{types}, int64_t, 1>"
        for m, n in ((32, 32), (8, 128)):
            instances[f"col_reduce_looped{m}_{op}"] = (
                f"col_reduce_looped<{types}, int64_t, 1, {m}, {n}>"
            )
        instances[f"col_reduce_2pass_{op}"] = f"col_reduce_2pass<{types}, int64_t, 1, 32, 32>"
        instances[f"init_{op}"] = f"init_reduce<{into}, {name}>"
    return apple(*REDUCE, **instances)


def values(op, *shape):
    kind = OPS[op][0]
    random = np.random.default_rng(len(op))
    if kind == "bool":
        return random.random(shape) < (0.98 if op == "and" else 0.02)
    if kind == "int":
        return random.integers(-(10**6), 10**6, shape).astype(np.int32)
    return ak.rounded(np.exp(random.normal(scale=0.05, size=shape)), kind)


def check(op, x, got, axis):
    """Sums and products of n terms within as many roundings of their magnitude."""
    kind, into, _, function = OPS[op]
    if into in ("bool", "int") or op == "min":
        x = ak.float32(x) if kind in ak.DTYPES else x
        assert (got.ravel() == function(x, axis=axis).ravel()).all()
        return
    expected = function(ak.float32(x).astype(np.float64), axis=axis).ravel()
    n = x.size // expected.size
    ak.assert_within(got.ravel(), expected, 4 * np.sqrt(n) * ak.ROUNDING[F] * expected, F)


def empty(op, *shape):
    return np.zeros(shape, DTYPES[OPS[op][1]])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("n", [1, 127, 1000])
def test_all(library, op, n):
    x, out = values(op, n), empty(op, 1)
    ak.launch(library, f"all_reduce_{op}", (1, 1), (64,), **{"in": x, "out": out},
              in_size=n, row_size=n)  # fmt: skip
    check(op, x, out, None)
    rows = empty(op, 3)
    row = -(-n // 3)
    if n > 3:
        ak.launch(library, f"all_reduce_{op}", (1, 3), (32,), **{"in": x, "out": rows},
                  in_size=n, row_size=row)  # fmt: skip
        for i in range(3):
            check(op, x[i * row : (i + 1) * row], rows[i], None)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("rows", "size"), [(4, 32), (9, 300)])
def test_rows(library, op, rows, size):
    x, out = values(op, rows, size), empty(op, rows)
    # The last threadgroup writes rows of the one before again, with the same values.
    allow = ("device_race",) if rows % 4 else ()
    ak.launch(library, f"row_reduce_simple_{op}", (1, -(-rows // 4)), (64,),
              **{"in": x, "out": out}, reduction_size=size, out_size=rows, allow=allow)  # fmt: skip
    check(op, x, out, 1)


def looped(outer, outer_strides, reduced, reduced_strides):
    """Arguments that say which axes stay and which are reduced, in elements."""
    return {
        "shape": np.array(outer, np.int32),
        "strides": np.array(outer_strides, np.int64),
        "ndim": len(outer),
        "reduce_shape": np.array(reduced, np.int32),
        "reduce_strides": np.array(reduced_strides, np.int64),
        "reduce_ndim": len(reduced),
    }


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("form", ["row_reduce_small", "row_reduce_looped"])
@pytest.mark.parametrize(("n_dims", "rows", "size"), [(1, 6, 7), (1, 40, 70), (2, 40, 5)])
def test_rows_and_other_axes(library, op, form, n_dims, rows, size):
    """Of (outer, rows, size) the last two axes, or of (rows / 2, outer, 2, size) all but outer."""
    if n_dims == 1:
        x, axis = values(op, OUTER, rows, size), (1, 2)
        axes = looped([OUTER], [rows * size], [rows], [size])
    else:
        x, axis = values(op, rows // 2, OUTER, 2, size), (0, 2, 3)
        axes = looped([OUTER], [2 * size], [rows // 2, 2], [OUTER * 2 * size, size])
    out = empty(op, OUTER)
    by_thread = form == "row_reduce_small" and (rows <= 8 or (rows < 32 and size <= 8))
    size_args = {"by": "threads"} if by_thread else {}
    grid, group = ((OUTER,), (2,)) if by_thread else ((1, OUTER), (32,))
    ak.launch(library, f"{form}{n_dims}_{op}", grid, group, **size_args, **{"in": x, "out": out},
              row_size=size, non_row_reductions=rows, **axes)  # fmt: skip
    check(op, x, out, axis)


# Threads beyond the last column end before the barrier: the specification does not allow that,
# Apple's GPUs do not wait for threads that have ended.
EARLY_EXIT = ("barrier_with_exited_threads",)
COLUMN_FORMS = {
    # name: grid for (outer, columns), threadgroup, how many partial results, columns
    "col_reduce_small1": ((3, OUTER), (8, 4), 1, 70),
    "col_reduce_small2": ((3, OUTER), (8, 1), 1, 70),
    "col_reduce_small5": ((1, OUTER), (32, 8), 1, 70),
    "col_reduce_longcolumn1": ((OUTER, 1, 2), (20, 8), 2, 20),
    "col_reduce_looped32": ((3, OUTER), (256,), 1, 70),
    "col_reduce_looped8": ((1, OUTER), (256,), 1, 70),
    "col_reduce_2pass": ((3, OUTER * 32), (256,), 32, 70),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("form", COLUMN_FORMS)
def test_columns(library, op, form):
    grid, group, parts, columns = COLUMN_FORMS[form]
    rows = 2000 if parts == 32 else ROWS
    x, out = values(op, OUTER, rows, columns), empty(op, parts, OUTER, columns)
    axes = looped([OUTER], [rows * columns], [rows], [columns])
    if form in ("col_reduce_small2", "col_reduce_small5"):
        split = [4, 10] if form.endswith("2") else [2, 2, 10]
        steps = np.cumprod([1, *split[:0:-1]])[::-1] * columns
        axes = looped([OUTER], [rows * columns], split, steps)
    extra = {"column_offset": 0} if "looped" in form or "2pass" in form else {}
    extra |= {"out_size": OUTER * (columns if "long" in form else 1)} if parts > 1 else {}
    extra |= {"allow": EARLY_EXIT} if "small" in form else {}
    ak.launch(library, f"{form}_{op}", grid, group, **{"in": x, "out": out}, reduction_size=rows,
              reduction_stride=columns, non_col_reductions=1, **axes, **extra)  # fmt: skip
    function = OPS[op][3]
    if parts > 1:
        out = function(ak.float32(out) if out.dtype == np.uint16 else out, axis=0)
    check(op, x, out, 1)


def test_identities(library):
    for op, identity in (("sum", 0), ("prod", 1), ("min", np.inf), ("max", -(2**31)), ("and", 1)):
        out = empty(op, 2, 3)
        ak.launch(library, f"init_{op}", (3, 2), (1, 1), by="threads", out=out)
        assert (out == identity).all()


SCANS = {
    "CumSum": np.cumsum,
    "CumProd": np.cumprod,
    "CumMax": np.maximum.accumulate,
    "CumMin": np.minimum.accumulate,
    "CumLogaddexp": np.logaddexp.accumulate,
}
WAYS = [(inclusive, reverse) for inclusive in (True, False) for reverse in (False, True)]
SCAN_HEADERS = ("utils.h", "binary_ops.h", "scan.h")

SCAN_INSTANCES = {
    f"{form}_{op}_{inclusive}{reverse}": f"{form}<float, float, {op}<float>, 4, "
    f"{str(inclusive).lower()}, {str(reverse).lower()}>"
    for form in ("contiguous_scan", "strided_scan")
    for op in SCANS
    for inclusive, reverse in WAYS
}


def scanned(x, op, inclusive, reverse):
    x = x[:, ::-1] if reverse else x
    result = SCANS[op](x, axis=1)
    if not inclusive:
        first = {"CumSum": 0, "CumProd": 1, "CumMin": np.inf}.get(op, -np.inf)
        result = np.concatenate([np.full_like(x[:, :1], first), result[:, :-1]], axis=1)
    return result[:, ::-1] if reverse else result


@pytest.mark.parametrize("op", SCANS)
@pytest.mark.parametrize(("inclusive", "reverse"), WAYS)
def test_scans(apple, op, inclusive, reverse):
    """Along rows, with 64 threads of 4 elements, and along columns, in tiles of 32 by 32."""
    library = apple(*SCAN_HEADERS, **SCAN_INSTANCES)
    x = np.exp(np.random.default_rng(1).normal(scale=0.1, size=(3, 700))).astype(np.float32)
    expected = scanned(x.astype(np.float64), op, inclusive, reverse)
    budget = 64 * ak.ROUNDING[F] * np.nan_to_num(np.abs(expected), posinf=0, neginf=0)
    finite = np.isfinite(expected)

    def check_scan(out):
        assert (out[~finite] == expected[~finite]).all()
        ak.assert_within(out[finite], expected[finite], budget[finite], F)

    out = np.zeros_like(x)
    name = f"{op}_{inclusive}{reverse}"
    # The sums of 32 simdgroups are read, those of the two that run are used.
    allow = ("uninitialised_threadgroup_memory",)
    ak.launch(library, f"contiguous_scan_{name}", (1, 3), (64,), **{"in": x, "out": out},
              axis_size=700, allow=allow)  # fmt: skip
    check_scan(out)
    columns = np.ascontiguousarray(x.T)
    out = np.zeros_like(columns)
    ak.launch(library, f"strided_scan_{name}", (1, 1), (256,), **{"in": columns, "out": out},
              axis_size=700, stride=3, stride_blocks=1)  # fmt: skip
    check_scan(out.T)


SORT_HEADERS = ("utils.h", "sort.h", "searchsorted.h")


@pytest.mark.parametrize(("kind", "dtype"), [(F, np.float32), (H, np.float16), ("int", np.int32)])
@pytest.mark.parametrize("arguments", [False, True])
def test_sort(apple, kind, dtype, arguments):
    into, flag = ("uint", "true") if arguments else (kind, "false")
    library = apple(
        *SORT_HEADERS,
        sort=f"block_sort<{kind}, {into}, {flag}, 32, 4>",
        sort_nc=f"block_sort_nc<{kind}, {into}, {flag}, 32, 4>",
    )
    x = np.random.default_rng(5).permutation(3 * 100).reshape(3, 100).astype(dtype)
    if dtype != np.int32:
        x[1, 7] = np.nan
        x[1, 9] = -np.inf
    expected = np.argsort(x, axis=1, kind="stable") if arguments else np.sort(x, axis=1)
    out = np.zeros((3, 100), np.uint32 if arguments else dtype)
    steps = {"in_stride_sorted_axis": 1, "out_stride_sorted_axis": 1, "size_sorted_axis": 100}
    segments = {"in_stride_segment_axis": 100, "out_stride_segment_axis": 100}
    ak.launch(library, "sort", (1, 3), (32,), inp=x, out=out, **steps, **segments)
    assert np.array_equal(out, expected, equal_nan=not arguments)
    columns, out = np.ascontiguousarray(x.T), np.zeros((100, 3), out.dtype)
    steps |= {"in_stride_sorted_axis": 3, "out_stride_sorted_axis": 3}
    others = {"nc_dim": 1, "nc_shape": np.array([3], np.int32)}
    others |= dict.fromkeys(("in_nc_strides", "out_nc_strides"), np.array([1], np.int64))
    ak.launch(library, "sort_nc", (1, 3), (32,), inp=columns, out=out, **steps, **others)
    assert np.array_equal(out.T, expected, equal_nan=not arguments)


def test_sort_in_blocks(apple):
    """5 blocks of 128, merged by twos."""
    types = "float, uint, true, 32, 4"
    names = ("mb_block_sort", "mb_block_partition", "mb_block_merge")
    library = apple(*SORT_HEADERS, **{name: f"{name}<{types}>" for name in names})
    rows, n, blocks = 2, 600, 5
    x = np.random.default_rng(6).permutation(rows * n).reshape(rows, n).astype(np.float32)
    vals, idxs = np.zeros((2, rows, n), np.float32), np.zeros((2, rows, n), np.uint32)
    ak.launch(library, names[0], (blocks, rows), (32,), inp=x, out_vals=vals[0], out_idxs=idxs[0],
              size_sorted_axis=n, stride_sorted_axis=1, nc_dim=1,
              nc_shape=np.array([rows], np.int32), nc_strides=np.array([n], np.int64))  # fmt: skip
    now, tiles = 0, 2
    while tiles // 2 < blocks:
        partitions = np.zeros((rows, blocks + 1), np.uint32)
        common = {"size_sorted_axis": n, "merge_tiles": tiles}
        ak.launch(library, names[1], (1, rows), (blocks + 1,), block_partitions=partitions,
                  dev_vals=vals[now], dev_idxs=idxs[now], n_blocks=blocks, **common)  # fmt: skip
        ak.launch(library, names[2], (blocks, rows), (32,), block_partitions=partitions,
                  dev_vals_in=vals[now], dev_idxs_in=idxs[now], dev_vals_out=vals[1 - now],
                  dev_idxs_out=idxs[1 - now], num_tiles=blocks, **common)  # fmt: skip
        now, tiles = 1 - now, 2 * tiles
    assert (vals[now] == np.sort(x, axis=1)).all()
    assert (idxs[now] == np.argsort(x, axis=1)).all()


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(apple, right):
    name = f"searchsorted<float, {str(right).lower()}>"
    library = apple(*SORT_HEADERS, search=name)
    a = np.sort(np.random.default_rng(7).integers(0, 30, 50)).astype(np.float32)
    v = np.arange(-1, 32, dtype=np.float32)
    out = np.zeros(v.size, np.uint32)
    doubled = np.repeat(a, 2)
    ak.launch(library, "search", (v.size,), (4,), by="threads", a=doubled, v=v, out=out, n=50,
              a_stride=2)  # fmt: skip
    assert (out == np.searchsorted(a, v, "right" if right else "left")).all()


@pytest.mark.parametrize("kind", [F, H, B])
def test_dot_product(apple, kind):
    library = apple("utils.h", "dot.h", dot=f"dot_product<{kind}, 32, 128, 4>")
    n = 9001
    random = np.random.default_rng(8)
    a, b = (ak.rounded(random.standard_normal(n), kind) for _ in range(2))
    groups = -(-n // (32 * 128))
    out = np.zeros(groups, np.float32)
    ak.launch(library, "dot", (groups,), (128,), a=a, b=b, output=out, n=n)
    x, y = (ak.float32(v).astype(np.float64) for v in (a, b))
    assert abs(out.astype(np.float64).sum() - x @ y) < 1e-6 * (np.abs(x) @ np.abs(y))


@pytest.mark.parametrize("kind", [F, H, B])
def test_cross_entropy(apple, kind):
    names = ("cross_entropy", "cross_entropy_vjp")
    library = apple("defines.h", "utils.h", "cross_entropy.h", **{n: f"{n}<{kind}>" for n in names})
    rows, axis = 4, 301
    random = np.random.default_rng(9)
    x = ak.rounded(random.standard_normal((rows, axis)) * 3, kind)
    targets = np.array([0, 300, -1, 7], np.int32)
    loss, cotangent = np.zeros(rows, np.float32), random.standard_normal(rows).astype(np.float32)
    sizes = {"axis_size": axis, "targets": targets}
    ak.launch(library, names[0], (rows,), (64,), **{"in": x, "out": loss}, **sizes)
    logits = ak.float32(x).astype(np.float64)
    sums = np.log(np.exp(logits).sum(1))
    ak.assert_within(loss, sums - logits[range(rows), targets], 1e-6 * (1 + np.abs(sums)), F)
    out = np.zeros_like(x)
    ak.launch(library, names[1], (rows,), (64,), **{"in": x, "out": out}, loss=loss,
              cotan=cotangent, **sizes)  # fmt: skip
    expected = np.exp(logits - sums[:, None])
    expected[range(rows), targets] -= 1
    ak.assert_within(out, expected * cotangent[:, None], np.full(x.shape, 2e-5), kind)
