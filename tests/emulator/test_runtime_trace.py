"""The trace build: bounds to the byte, uninitialised memory, races, bytes moved."""

from pathlib import Path

import emulator_runtime as er
import numpy as np
import pytest

SOURCE = Path(__file__).with_name("trace_kernels.cpp")
ORDERS = [dict(order=er.FORWARD), dict(order=er.REVERSE), dict(order=er.RANDOM, seed=5)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return er.Library(er.build(SOURCE, tmp_path_factory.mktemp("trace"), trace=True))


def floats(*shape):
    return np.zeros(shape, np.float32)


def data(*shape):
    return np.random.default_rng(1).integers(-8, 8, shape).astype(np.float32)


class Reference:
    """A right kernel: its inputs, and the result to expect."""

    def __init__(self, kernel, mutants, threads, groups, arrays, expected, kind):
        self.kernel, self.threads, self.groups = kernel, threads, groups
        self.mutants, self.arrays, self.expected, self.kind = mutants, arrays, expected, kind

    def launch(self, library, mutant=0, **policies):
        value = np.array(mutant, np.int32)
        library.abi.emu_set_constant(0, value.ctypes.data_as(er.ctypes.c_void_p), 4)
        arrays = [array.copy() for array in self.arrays]
        launch = library.launch(
            self.kernel, dict(enumerate(arrays)), (self.threads,), (self.groups,), **policies
        )
        library.abi.emu_clear_constants()
        return launch, arrays[1]

    def __str__(self):
        return self.kernel


ROWS = data(3, 128)
MATRIX = data(8, 64)
LANES = data(64)
BINS = np.random.default_rng(2).integers(0, 4, (3, 64)).astype(np.int32)
SHARED, DEVICE = "threadgroup_race", "device_race"
UNINITIALISED = "uninitialised_threadgroup_memory"
REFERENCES = [
    Reference("reduce", 2, 128, 3, [ROWS, floats(3)], ROWS.sum(1), SHARED),
    Reference("scan", 3, 128, 3, [ROWS, floats(3, 128)], ROWS.cumsum(1), SHARED),
    Reference("tiles", 2, 64, 1, [MATRIX, floats(8, 8)], MATRIX @ MATRIX.T, SHARED),
    Reference("reverse_in_simdgroup", 3, 64, 1, [LANES, floats(64)], LANES, SHARED),
    Reference("reverse_in_quadgroup", 5, 64, 1, [LANES, floats(64)], LANES, SHARED),
    Reference(
        *("device_exchange", 3, 64, 2, [floats(128), floats(128)]),
        *(np.tile((np.arange(64) + 33) % 64, 2), DEVICE),
    ),
    Reference(
        *("histogram", 2, 64, 3, [BINS, np.zeros(4, np.int32)]),
        *(np.bincount(BINS.ravel(), minlength=4), SHARED),
    ),
]
MUTANTS = [(r, m) for r in REFERENCES for m in range(1, r.mutants + 1)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("reference", REFERENCES, ids=str)
def test_right_kernels_have_no_findings(library, reference, order):
    launch, out = reference.launch(library, **order)
    assert (launch.status, launch.findings) == (er.OK, [])
    np.testing.assert_array_equal(out, reference.expected)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize(("reference", "mutant"), MUTANTS, ids=str)
def test_every_missing_barrier_is_found(library, reference, mutant, order):
    launch, _ = reference.launch(library, mutant, **order)
    assert launch.status == er.OK
    kinds = {finding["kind"] for finding in launch.findings if finding["severity"] != "note"}
    # Under some orders a thread also reads what no thread has stored yet.
    assert reference.kind in kinds and kinds <= {reference.kind, UNINITIALISED}, launch.findings


def test_a_race_names_both_accesses(library):
    launch, _ = REFERENCES[1].launch(library, 2)
    finding = launch.findings[launch.kinds.index("threadgroup_race")]
    assert finding["message"] == (
        "load from threadgroup variable sums that another thread stored "
        "without a barrier in between"
    )
    assert finding["variable"] == "sums" and finding["access_bytes"] == 4
    assert (finding["lane"], finding["other_lane"]) == (1, 0)
    assert finding["pcs"][0] != finding["other_pcs"][0] > 0


def test_bytes_are_counted_per_buffer(library):
    launch, _ = REFERENCES[0].launch(library)
    assert launch.read_bytes == {0: 3 * 128 * 4}
    assert launch.written_bytes == {1: 3 * 4}
    # Stores: one each, then 64 + 32 + ... + 1; loads: two for each of these, and the result.
    assert launch.counters["threadgroup_written_bytes"] == 3 * 4 * (128 + 127)
    assert launch.counters["threadgroup_read_bytes"] == 3 * 4 * (2 * 127 + 1)
    assert launch.counters["device_read_bytes"] == 3 * 128 * 4
    assert launch.counters["device_written_bytes"] == 3 * 4


def out_of_bounds(launch, byte, access, access_bytes=4):
    finding = launch.only("device_out_of_bounds")
    assert (finding["buffer"], finding["byte"], finding["access"]) == (0, byte, access)
    assert finding["buffer_bytes"] == 13 * 4 and finding["access_bytes"] == access_bytes
    return finding


@pytest.mark.parametrize("guard_begin", [0, 1])
def test_out_of_bounds_to_the_byte(library, guard_begin):
    def launch(kernel, threads):
        buffers = {0: floats(13), 1: floats(32)}
        return library.launch(kernel, buffers, (threads,), guard_begin=guard_begin)

    assert out_of_bounds(launch("read_slack", 4), 52, "load")["lane"] == 3
    assert out_of_bounds(launch("write_slack", 4), 52, "store")["lane"] == 3
    half = launch("read_half_outside", 1).only("device_out_of_bounds")
    assert (half["buffer"], half["access"]) == (0, "load")
    copied = launch("copy_outside", 1).only("device_out_of_bounds")
    assert (copied["buffer"], copied["access"]) == (0, "load")


def test_out_of_bounds_where_pages_are_protected_is_a_fault(library):
    launch = library.launch("read_far_outside", {0: floats(13), 1: floats(4)}, (1,))
    finding = launch.only("device_out_of_bounds")
    assert launch.status == er.FAULT and finding["severity"] == "fault"
    assert (finding["buffer"], finding["byte"], finding["access"]) == (0, 400000, "load")


def test_threadgroup_memory_to_the_byte(library):
    finding = library.launch("threadgroup_slack", {}, (6,)).only("threadgroup_out_of_bounds")
    assert (finding["variable"], finding["byte"], finding["lane"]) == ("shared", 20, 5)
    finding = library.launch("threadgroup_before", {}, (32,)).only("threadgroup_out_of_bounds")
    assert (finding["variable"], finding["byte"], finding["lane"]) == ("shared", -4, 0)


def test_uninitialised_threadgroup_memory(library):
    launch = library.launch("uninitialised", {0: floats(64)}, (32,), (2,))
    finding = launch.only("uninitialised_threadgroup_memory")
    assert (finding["threadgroup"], finding["lane"]) == ([1, 0, 0], 7)
    assert (finding["variable"], finding["byte"]) == ("shared", 28)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_threadgroups_race_on_device_memory(library, order):
    launch = library.launch("groups_write_one_place", {0: floats(2)}, (32,), (4,), **order)
    finding = launch.only("device_race")
    assert finding["message"] == (
        "store to buffer 0 that another threadgroup stored in the same launch"
    )
    assert finding["count"] == 2 and finding["byte"] in (0, 4)
    assert finding["severity"] == "error"
    buffers = {0: floats(32), 1: floats(128)}
    launch = library.launch("groups_read_what_one_writes", buffers, (32,), (4,), **order)
    assert set(launch.kinds) == {"device_race"}
    launch = library.launch("groups_mix_atomic_and_plain", {0: np.zeros(1, np.int32)}, (1,), (3,))
    assert set(launch.kinds) == {"device_race"}


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_storing_what_is_there_already_is_a_note(library, order):
    """Kernels shift the last tile back over its neighbour, and compute some results twice."""
    launch = library.launch("groups_write_the_same", {0: floats(2)}, (32,), (4,), **order)
    finding = launch.only("same_value_race")
    assert (finding["severity"], finding["count"]) == ("note", 2)


def test_shim_accesses_count_as_those_of_the_kernel(library):
    launch = library.launch("read_by_shim", {0: floats(32)}, (32,))
    assert launch.only("threadgroup_race")["variable"] == "shared"
    assert launch.counters["threadgroup_read_bytes"] == 32 * 4


def test_stores_of_an_operation_need_a_barrier(library):
    launch = library.launch("read_what_an_operation_stored", {0: floats(32)}, (32,))
    finding = launch.only("threadgroup_race")
    lines = SOURCE.read_text().splitlines()
    (kernel,) = [i for i, line in enumerate(lines) if "KERNEL(read_what_an_op" in line]
    # Those of thread 0, which stored for all, need none.
    assert (finding["count"], finding["other_line"]) == (31, kernel + 4)


def test_thread_memory_is_private(library):
    launch = library.launch("local_of_another_thread", {0: floats(2)}, (2,))
    assert launch.only("thread_memory_of_another_thread")["lane"] == 1


def test_abi_says_that_this_is_the_trace_build(library):
    assert library.abi.emu_is_trace() == 1
