"""One planted fault for each detector of the plain build, and what it must say."""

from pathlib import Path

import emulator_runtime as er
import numpy as np
import pytest

SOURCE = Path(__file__).with_name("runtime_kernels.cpp")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return er.Library(er.build(SOURCE, tmp_path_factory.mktemp("faults")))


def floats(n):
    return np.zeros(n, np.float32)


def where(finding):
    return finding["threadgroup"], finding["lane"]


def fault(launch, kind):
    """The one finding, which gave the launch up."""
    assert launch.status == er.FAULT
    finding = launch.only(kind)
    assert finding["severity"] == "fault" and finding["kernel"] and finding["pcs"]
    return finding


def test_read_past_the_end_of_a_buffer(library):
    launch = library.launch("read_past_end", {0: floats(64), 1: floats(64)}, (32,), (1, 2))
    finding = fault(launch, "device_out_of_bounds")
    assert where(finding) == ([0, 1, 0], 5)
    assert (finding["buffer"], finding["byte"], finding["buffer_bytes"]) == (0, 256, 256)
    assert finding["access"] == "load"
    assert finding["message"] == "access outside buffer 0: byte 256 of its 256"


@pytest.mark.parametrize(
    ("kernel", "policies", "byte"),
    [
        ("write_past_end", {}, 280),
        ("write_far_past_end", {}, 4000020),
        ("write_before_begin", {"guard_begin": 1}, -4),
    ],
)
def test_write_outside_a_buffer(library, kernel, policies, byte):
    finding = fault(
        library.launch(kernel, {0: floats(64)}, (32,), **policies), "device_out_of_bounds"
    )
    assert (finding["buffer"], finding["byte"], finding["access"]) == (0, byte, "store")


def test_what_was_written_before_a_fault_comes_back(library):
    out = floats(64)
    library.launch("write_past_end", {0: out}, (32,))
    assert out.tolist() == [1] * 5 + [0] * 59


def test_write_into_the_slack_of_a_buffer_is_seen_after_the_launch(library):
    """Vector types need 16-byte alignment, so 8 bytes after this buffer of 280 are writable."""
    assert library.launch("write_past_end", {0: floats(71)}, (32,)).findings == []
    launch = library.launch("write_past_end", {0: floats(70)}, (32,))
    finding = launch.only("device_out_of_bounds")
    assert launch.status == er.OK
    assert (finding["buffer"], finding["byte"], finding["access"]) == (0, 280, "store")


def test_write_before_a_buffer_is_seen_after_the_launch(library):
    launch = library.launch("write_before_begin", {0: floats(64)}, (32,))
    finding = launch.only("device_out_of_bounds")
    assert (finding["buffer"], finding["byte"], finding["access"]) == (0, -4, "store")


def test_unbound_buffer(library):
    finding = fault(library.launch("write_unbound", {0: floats(64)}, (32,)), "unbound_buffer")
    assert finding["buffer"] == 5 and where(finding) == ([0, 0, 0], 0)
    assert finding["message"] == "access to buffer 5, which is not bound"


def test_null_pointer(library):
    finding = fault(library.launch("write_null", {}, (1,)), "wild_access")
    assert finding["message"] == "access through a null pointer"


def test_threadgroup_memory_out_of_bounds(library):
    finding = fault(library.launch("threadgroup_past_end", {}, (32,)), "threadgroup_out_of_bounds")
    assert (finding["variable"], finding["byte"], finding["lane"]) == ("shared", 132, 9)


def test_integer_division_by_zero(library):
    finding = fault(library.launch("divide_by_zero", {0: floats(32)}, (32,)), "integer_division")
    assert finding["lane"] == 4


def test_trap_of_the_compiler(library):
    assert fault(library.launch("trap", {}, (32,)), "undefined_behaviour")["lane"] == 2


def test_stack_overflow(library):
    finding = fault(library.launch("overflow_stack", {0: floats(4)}, (3,)), "stack_overflow")
    assert finding["lane"] == 0
    deep_enough = library.launch("overflow_stack", {0: floats(4)}, (1,), stack_kib=1 << 20)
    assert deep_enough.status == er.OK


def test_fault_of_the_shim_gives_the_launch_up(library):
    finding = fault(library.launch("fault_by_shim", {}, (32,), (100,)), "planted")
    assert (finding["message"], finding["lane"]) == ("the shim gave up", 8)


def test_uninitialised_threadgroup_memory_is_nan_in_every_threadgroup(library):
    out = floats(96)
    assert library.launch("read_uninitialised", {0: out}, (32,), (3,)).status == er.OK
    assert np.flatnonzero(np.isnan(out)).tolist() == [13, 45, 77]


def test_more_threadgroup_memory_than_a_gpu_has(library):
    assert library.launch("too_much_memory", {}, (1,)).findings == []
    launch = library.launch("too_much_memory", {}, (4,), (3,))
    finding = launch.only("threadgroup_memory_limit")
    assert where(finding) == ([1, 0, 0], 0)
    assert finding["message"] == (
        "32784 bytes of threadgroup memory with variable one_too_many, the limit is 32768"
    )


def test_more_threads_than_a_gpu_allows(library):
    launch = library.launch("counted", {}, (32, 32, 2))
    assert launch.status == er.BAD_ARGUMENT
    assert launch.only("threadgroup_too_large")["message"] == (
        "2048 threads in a threadgroup (32, 32, 2), the limit is 1024"
    )


@pytest.mark.parametrize("sizes", [{"threads": (0,)}, {"threads": (1,), "grid": (2, 0)}])
def test_empty_launch(library, sizes):
    launch = library.launch("counted", {}, **sizes)
    assert launch.status == er.BAD_ARGUMENT and launch.only("bad_launch")


def test_buffer_index_beyond_the_argument_table(library):
    launch = library.launch("counted", {31: floats(1)}, (1,))
    assert launch.status == er.BAD_ARGUMENT
    assert launch.only("bad_launch")["message"] == "buffer index 31, the highest is 30"


def test_unknown_kernel(library):
    launch = library.launch("nonesuch", {}, (1,))
    assert (launch.status, launch.findings) == (er.UNKNOWN_KERNEL, [])


def kernel_line(text, nth=0):
    lines = SOURCE.read_text().splitlines()
    return [i + 1 for i, line in enumerate(lines) if text in line][nth]


def test_barrier_in_two_branches(library):
    launch = library.launch("divergent_barrier", {}, (64,))
    assert launch.status == er.OK
    assert launch.kinds == ["divergent_barrier", "barrier_with_exited_threads"]
    first = kernel_line("KERNEL(divergent_barrier)") + 2
    assert [finding["line"] for finding in launch.findings] == [first, first + 2]
    assert launch.findings[0]["message"] == (
        "threadgroup_barrier with 16 of 64 threads: the others are elsewhere or have ended"
    )


def test_simd_op_in_one_branch(library):
    out = np.zeros(32, np.int32)
    launch = library.launch("divergent_simd_op", {0: out}, (32,))
    finding = launch.only("divergent_simd_op")
    assert finding["line"] == kernel_line("KERNEL(divergent_simd_op)") + 2
    assert finding["severity"] == "error"
    assert out.tolist() == [16] * 16 + [0] * 16


def test_barrier_after_a_thread_has_ended(library):
    finding = library.launch("barrier_after_exit", {}, (64,)).only("barrier_with_exited_threads")
    assert finding["message"] == (
        "threadgroup_barrier with 63 of 64 threads: the others have ended"
    )


def test_simd_op_after_threads_have_ended_is_legal(library):
    out = np.zeros(32, np.int32)
    launch = library.launch("simd_op_after_exit", {0: out}, (32,))
    assert launch.only("simd_op_with_exited_threads")["severity"] == "note"
    assert out.tolist() == [20] * 20 + [0] * 12


def test_findings_are_counted_not_repeated(library):
    launch = library.launch("reported_by_shim", {}, (64,), (10,), os_threads=2)
    finding = launch.only("planted")
    assert (finding["count"], finding["lane"]) == (320, 1)


@pytest.mark.parametrize("order", [er.FORWARD, er.REVERSE, er.RANDOM])
def test_findings_of_an_operation_are_those_of_its_first_thread(library, order):
    launch = library.launch("reported_by_operation", {}, (64,), order=order)
    finding = launch.only("planted")
    assert (finding["count"], finding["lane"]) in ((2, 0), (2, 32))
    assert finding["line"] == kernel_line("KERNEL(reported_by_operation)") + 2
    assert finding["pcs"]


def test_a_hanging_kernel_is_given_up(library):
    flag = np.zeros(1, np.int32)
    launch = library.launch("hang", {0: flag}, (32,), (4,), os_threads=2, time_limit_ms=300)
    finding = fault(launch, "time_limit")
    assert finding["message"] == "the launch took longer than 300 ms"
    assert library.launch("hang", {0: np.ones(1, np.int32)}, (32,), (4,)).status == er.OK


def test_a_launch_after_a_fault_is_clean(library):
    library.launch("write_null", {}, (1,))
    out = np.zeros((64, 3), np.int32)
    launch = library.launch("sums", {0: out}, (64,))
    assert (launch.status, launch.findings) == (er.OK, [])
