"""Launching kernels from Python: arguments, function constants, grids, faults."""

import re
import threading

import numpy as np
import pytest

from mlx_tensorops.testing import emulator

SOURCE = """#include <metal_stdlib>
using namespace metal;

constant bool negate [[function_constant(0)]];
constant float2 pair [[function_constant(1)]];
constant short small [[function_constant(2)]];
constant int twice = small * 2;
constant int given = is_function_constant_defined(small) ? 1 : 0;

struct Params { int n; float scale; };

kernel void scaled(
    const device float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    constant Params& params [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
  y[i] = (negate ? -1 : 1) * params.scale * x[i];
}

kernel void constants(device float* y) {
  y[0] = pair.x; y[1] = pair.y; y[2] = small; y[3] = twice; y[4] = given;
}

kernel void scalars(device float* y, constant int64_t& a, constant half& b, constant uint3& c,
    constant bool& d, const device bfloat& e) {
  y[0] = a; y[1] = b; y[2] = c.x + c.z; y[3] = d; y[4] = e;
}

constant bool has_mask [[function_constant(9)]];
kernel void masked(device float* y,
    const device float* mask [[buffer(1), function_constant(has_mask)]],
    constant float& bias [[buffer(2), function_constant(has_mask)]],
    uint i [[thread_index_in_threadgroup]]) {
  y[i] = has_mask ? mask[i] + bias : 5;
}

kernel void reversed(device float* x, threadgroup float* a [[threadgroup(0)]],
    threadgroup float* b [[threadgroup(2)]],
    uint i [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  a[i] = x[i];
  b[n - 1 - i] = a[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = b[i];
}

kernel void fresh(device float* y, uint i [[thread_index_in_threadgroup]]) {
  threadgroup float memory[4];
  y[i] = memory[i];
}

kernel void where(device uint* y, uint3 p [[thread_position_in_grid]], uint3 n [[threads_per_grid]],
    ushort3 t [[threads_per_threadgroup]], uint2 g [[threadgroup_position_in_grid]]) {
  uint at = (p.z * n.y + p.y) * n.x + p.x;
  y[4 * at] = at; y[4 * at + 1] = t.x; y[4 * at + 2] = g.y; y[4 * at + 3] = t.z;
}

[[kernel, max_total_threads_per_threadgroup(64)]] void limited(device float* y) {}
"""


@pytest.fixture(scope="module")
def library():
    return emulator.compile(SOURCE, name="launch.metal")


def line_of(text):
    return next(n for n, line in enumerate(SOURCE.splitlines(), 1) if text in line)


def scaled_arguments(n=64, scale=3.0):
    x = np.arange(n, dtype=np.float32)
    params = np.array([(n, scale)], np.dtype([("n", np.int32), ("scale", np.float32)]))
    return {0: x, 1: np.zeros(n, np.float32), 2: params.tobytes()}


def test_arrays_are_written_in_place(library):
    arguments = scaled_arguments()
    result = library.pipeline("scaled", {0: False}).launch(arguments, grid=(2,), threadgroup=(32,))
    assert (arguments[1] == 3 * arguments[0]).all()
    assert result.findings == ()
    assert result.counters["simd_ops"] == result.counters["threadgroup_barriers"] == 0


def test_pipelines_keep_their_constants(library):
    plain, negated = library.pipeline("scaled", {0: False}), library.pipeline("scaled", {0: True})
    arguments = scaled_arguments()
    for kernel, sign in ((negated, -1), (plain, 1), (negated, -1)):
        kernel.launch(arguments, grid=(64,))
        assert (arguments[1] == sign * 3 * arguments[0]).all()


def test_function_constants_have_their_types(library):
    y = np.zeros(5, np.float32)
    library.pipeline("constants", {1: (0.5, -2), 2: -7}).launch({0: y}, grid=(1,))
    assert y.tolist() == [0.5, -2, -7, -14, 1]
    library.pipeline("constants", {1: (0, 0)}).launch({0: y}, grid=(1,))
    assert y.tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({7: 1}, r"constants must be function constants of the library \(0, 1, 2, 9\), got 7"),
        ({2: 40000}, "40000 is no value of short"),
        ({2: 1.5}, "1.5 is no value of short"),
        ({1: 3}, "float2 takes 2 values, got 3"),
    ],
)
def test_wrong_constants_are_refused(library, constants, message):
    with pytest.raises(ValueError, match=message):
        library.pipeline("constants", constants)


@pytest.mark.parametrize(
    ("kernel", "constants", "missing"),
    [
        ("scaled", {}, r"kernel scaled uses: negate \(index 0\)"),
        ("constants", {2: 1}, r"kernel constants uses: pair \(index 1\)"),
        ("masked", {1: (1, 1)}, r"kernel masked uses: has_mask \(index 9\)"),
    ],
)
def test_function_constants_in_use_need_a_value(library, kernel, constants, missing):
    with pytest.raises(ValueError, match=missing):
        library.pipeline(kernel, constants)


LIMITS = """#include <metal_stdlib>
using namespace metal;
constant constexpr int kLanes = 32;
namespace tiles {
template <typename T, int WM, int WN = 2>
[[kernel, max_total_threads_per_threadgroup(WM * WN * kLanes)]] void tile(device T* y) { y[0] = 1; }
template [[host_name("tile_12")]] [[kernel]] decltype(tile<float, 1, 2>) tile<float, 1, 2>;
}
[[max_total_threads_per_threadgroup(kLanes * 3)]] kernel void plain(device float* y) { y[0] = 1; }
"""


def test_limits_may_depend_on_template_parameters():
    library = emulator.compile(LIMITS, instantiations={"tile_3": "tiles::tile<half, 3>"})
    for name, limit in (("tile_12", 64), ("tile_3", 192), ("plain", 96)):
        kernel, y = library.pipeline(name), {0: np.zeros(1, np.float32)}
        kernel.launch(y, grid=(1,), threadgroup=(limit,))
        with pytest.raises(ValueError, match=f"{limit + 1} threads .*, the limit is {limit}"):
            kernel.launch(y, grid=(1,), threadgroup=(limit + 1,))


def test_numbers_take_the_type_of_the_parameter(library):
    y = np.zeros(5, np.float32)
    arguments = {0: y, 1: -3, 2: 0.1, 3: (4, 0, 1), 4: True, 5: 1 + 2**-7}
    library.pipeline("scalars").launch(arguments, grid=(1,))
    assert y.tolist() == [-3, float(np.float16(0.1)), 5, 1, 1 + 2**-7]


def test_a_number_needs_a_known_type(library):
    arguments = scaled_arguments() | {2: 3}
    message = r"buffer 2 \(params\) of kernel scaled is of type Params&: it must be an array, bytes"
    with pytest.raises(ValueError, match=message):
        library.pipeline("scaled", {0: False}).launch(arguments, grid=(1,))


def test_buffers_of_disabled_arguments_need_not_be_bound(library):
    y, mask = np.zeros(4, np.float32), np.arange(4, dtype=np.float32)
    without, with_mask = (library.pipeline("masked", {9: value}) for value in (False, True))
    without.launch({0: y, 1: None}, grid=(1,), threadgroup=(4,))
    assert y.tolist() == [5] * 4
    with_mask.launch({0: y, 1: mask, 2: 10.0}, grid=(1,), threadgroup=(4,))
    assert y.tolist() == [10, 11, 12, 13]
    with pytest.raises(emulator.Fault, match="buffer 1 "):
        with_mask.launch({0: y, 2: 10.0}, grid=(1,), threadgroup=(4,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({3: 1.0}, r"buffers must be those of kernel scaled \(0, 1, 2\), got 3"),
        (
            {1: np.zeros((64, 2), np.float32)[:, 0]},
            r"buffer 1 \(y\) .* must be contiguous and writ",
        ),
        ({1: np.broadcast_to(np.float32(0), 64)}, r"buffer 1 \(y\) .* must be contiguous and writ"),
    ],
)
def test_wrong_buffers_are_refused(library, change, message):
    with pytest.raises(ValueError, match=message):
        library.pipeline("scaled", {0: False}).launch(scaled_arguments() | change, grid=(1,))


def test_a_buffer_is_left_out_on_purpose_only(library):
    arguments = scaled_arguments()
    del arguments[1]
    with pytest.raises(ValueError, match=r"buffer 1 \(y\) of kernel scaled must be bound"):
        library.pipeline("scaled", {0: False}).launch(arguments, grid=(1,))
    with pytest.raises(emulator.Fault, match=r"buffer 1 \(y\)"):
        library.pipeline("scaled", {0: False}).launch(arguments | {1: None}, grid=(1,))


def test_read_only_buffers_may_be_strided(library):
    arguments = scaled_arguments() | {0: np.arange(128, dtype=np.float32)[::2]}
    library.pipeline("scaled", {0: False}).launch(arguments, grid=(64,))
    assert (arguments[1] == 6 * np.arange(64)).all()


def test_threadgroup_memory_is_sized_at_the_launch(library):
    x = np.arange(96, dtype=np.float32)
    kernel = library.pipeline("reversed")
    result = kernel.launch(
        {0: x}, grid=(1,), threadgroup=(96,), threadgroup_memory={0: 384, 2: 384}
    )
    assert x.tolist() == list(range(95, -1, -1))
    assert result.counters["threadgroup_barriers"] == 1
    assert result.counters["threadgroup_bytes"] == 768
    with pytest.raises(ValueError, match=r"threadgroup_memory must have sizes for \[0, 2\], got"):
        kernel.launch({0: x}, grid=(1,), threadgroup_memory={0: 384})
    with pytest.raises(emulator.Fault, match="the limit is 32768; threadgroup"):
        kernel.launch({0: x}, grid=(1,), threadgroup_memory={0: 30000, 2: 3000})


def test_fresh_threadgroup_memory_is_nan(library):
    y = np.zeros(4, np.float32)
    library.pipeline("fresh").launch({0: y}, grid=(3,), threadgroup=(4,), os_threads=1)
    assert np.isnan(y).all()


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_grids_of_threads_end_in_smaller_threadgroups(library, order):
    size, threadgroup = (5, 7, 3), (2, 4, 2)
    y = np.zeros((3, 7, 5, 4), np.uint32)
    library.pipeline("where").launch(
        {0: y}, threads=size, threadgroup=threadgroup, policies=emulator.Policies(order=order)
    )
    assert (y[..., 0].ravel() == np.arange(105)).all()
    assert (y[..., 1] == np.where(np.arange(5) < 4, 2, 1)).all()
    assert (y[..., 2] == (np.arange(7) // 4)[:, None]).all()
    assert (y[..., 3] == np.where(np.arange(3) < 2, 2, 1)[:, None, None]).all()


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        (
            "limited",
            dict(grid=(1,), threadgroup=(65,)),
            "65 threads in a threadgroup .*, the limit is 64",
        ),
        (
            "limited",
            dict(grid=(1,), threadgroup=(8, 0)),
            "threadgroup must be one to three whole numbers",
        ),
        ("where", dict(grid=(1,), threadgroup=(1025,)), "the limit is 1024"),
        ("limited", dict(), "either grid or threads"),
        ("limited", dict(grid=(1,), threads=(1,)), "either grid or threads"),
        ("limited", dict(grid=()), "grid must be one to three whole numbers"),
        ("limited", dict(grid=(2**32 + 1,)), "grid must be one to three whole numbers"),
        ("limited", dict(grid=(1.5,)), "grid must be one to three whole numbers"),
        ("limited", dict(grid=1), "grid must be one to three whole numbers"),
        ("limited", dict(grid=(2**26,), threadgroup=(64,)), "fewer than 2\\^32 threads"),
        ("limited", dict(grid=(-1,)), "grid must be one to three whole numbers"),
    ],
)
def test_wrong_sizes_are_refused(library, name, sizes, message):
    with pytest.raises(ValueError, match=message):
        library.pipeline(name).launch({0: np.zeros(5, np.float32)}, **sizes)


@pytest.mark.parametrize("dtype", [object, np.float64, np.complex128, "datetime64[s]", "U4"])
def test_arrays_of_types_that_metal_lacks_are_refused(library, dtype):
    with pytest.raises(ValueError, match="must be an array of a type that Metal has"):
        library.pipeline("limited").launch({0: np.zeros(5, dtype)}, grid=(1,))


def test_wrong_names_and_policies_are_refused(library):
    with pytest.raises(ValueError, match="host_name must be one of .*scaled.*, got nothing"):
        library.pipeline("nothing")
    with pytest.raises(ValueError, match='order must be one of "forward", "reverse", "random"'):
        emulator.Policies(order="sideways")


def test_a_fault_says_where(library):
    arguments = scaled_arguments()
    arguments[0] = arguments[0][:40].copy()
    kernel = library.pipeline("scaled", {0: False})
    with pytest.raises(emulator.Fault) as caught:
        kernel.launch(arguments, grid=(2,), threadgroup=(32,), os_threads=1)
    finding = caught.value.findings[0]
    assert (finding.kernel, finding.severity) == ("scaled", "fault")
    assert (finding.buffer, finding.argument, finding.byte) == (0, "x", 160)
    assert (finding.threadgroup, finding.lane) == ((1, 0, 0), 8)
    assert finding.place == f"launch.metal:{line_of('params.scale * x[i]')}"
    assert re.search(
        r"kernel scaled: .* buffer 0 \(x\), byte 160 of 160; threadgroup \(1, 0, 0\), lane 8, "
        r"at launch\.metal:\d+",
        str(caught.value),
    )
    # Nothing of it is left.
    assert kernel.launch(scaled_arguments(), grid=(2,), threadgroup=(32,)).findings == ()


def test_findings_can_be_looked_at_instead(library):
    arguments = scaled_arguments() | {0: np.zeros(3, np.float32)}
    kernel = library.pipeline("scaled", {0: False})
    # One thread: with two, both threadgroups may fault.
    result = kernel.launch(arguments, grid=(2,), threadgroup=(32,), os_threads=1, check=False)
    assert [finding.argument for finding in result.findings] == ["x"]


def test_launches_from_several_threads(library):
    kernels = [library.pipeline("scaled", {0: value}) for value in (False, True)]
    failures = []

    def work(kernel, sign):
        for _ in range(20):
            arguments = scaled_arguments()
            kernel.launch(arguments, grid=(64,))
            if not (arguments[1] == sign * 3 * arguments[0]).all():
                failures.append(sign)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(kernels, (1, -1), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
