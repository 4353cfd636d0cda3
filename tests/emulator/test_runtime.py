"""The emulator's runtime without the rewriter: threads, meetings, memory, findings."""

import mmap
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import emulator_runtime as er
import numpy as np
import pytest

SOURCE = Path(__file__).with_name("runtime_kernels.cpp")
POOL = (er.ctypes.c_uint64 * 512)()  # EMU_STACK_POOL_BYTES
ORDERS = [dict(order=er.FORWARD), dict(order=er.REVERSE)]
ORDERS += [dict(order=er.RANDOM, seed=seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return er.Library(er.build(SOURCE, tmp_path_factory.mktemp("runtime")))


def test_abi_names_what_the_library_holds(library):
    assert library.abi.emu_abi_version() == 1
    assert library.abi.emu_is_trace() == 0
    names = library.abi.emu_kernels().decode().split()
    assert names == sorted(names) and {"positions", "sums", "hang"} <= set(names)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("os_threads", [1, 3])
@pytest.mark.parametrize(
    ("threads", "grid_threads"),
    [
        ((32, 1, 1), (64, 2, 1)),
        ((5, 3, 2), (15, 6, 4)),
        ((8, 4, 2), (13, 9, 3)),
        ((1024,), (1500,)),
    ],
)
def test_every_thread_runs_once_and_knows_where_it_is(
    library, order, os_threads, threads, grid_threads
):
    threads = threads + (1,) * (3 - len(threads))
    grid_threads = grid_threads + (1,) * (3 - len(grid_threads))
    n = int(np.prod(grid_threads))
    out = np.full((n, 12), 77, np.uint32)
    launch = library.launch(
        "positions",
        {0: out},
        threads,
        threads_per_grid=grid_threads,
        os_threads=os_threads,
        **order,
    )
    assert (launch.status, launch.findings) == (er.OK, [])
    for row, i in zip(out.tolist(), range(n), strict=True):
        at = [
            i % grid_threads[0],
            i // grid_threads[0] % grid_threads[1],
            i // (grid_threads[0] * grid_threads[1]),
        ]
        group = [a // t for a, t in zip(at, threads, strict=True)]
        here = [min(t, g - p * t) for t, g, p in zip(threads, grid_threads, group, strict=True)]
        local = [a - p * t for a, p, t in zip(at, group, threads, strict=True)]
        index = local[0] + here[0] * (local[1] + here[1] * local[2])
        simdgroups = (here[0] * here[1] * here[2] + 31) // 32
        grid = (grid_threads[0] + threads[0] - 1) // threads[0]
        assert row == [*at, *group, index % 32, index // 32, index, simdgroups, here[0], grid]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_each_scope_meets_its_own_threads(library, order):
    n = 70
    out = np.zeros((n, 3), np.int32)
    launch = library.launch("sums", {0: out}, (n,), **order)
    assert (launch.status, launch.findings) == (er.OK, [])
    for i in range(n):
        of_simdgroup = [j for j in range(n) if j // 32 == i // 32]
        of_quad = [j for j in range(n) if j // 4 == i // 4]
        assert out[i].tolist() == [sum(of_simdgroup), sum(of_quad), sum(range(n))]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("os_threads", [1, 2])
def test_barriers_make_a_reduction_independent_of_the_order(library, order, os_threads):
    data = np.arange(5 * 256, dtype=np.float32)
    out = np.zeros(5, np.float32)
    launch = library.launch(
        "reduce", {0: data, 1: out}, (256,), (5,), os_threads=os_threads, **order
    )
    assert (launch.status, launch.findings) == (er.OK, [])
    np.testing.assert_array_equal(out, data.reshape(5, 256).sum(1))
    assert launch.counters["threadgroup_barriers"] == 5 * 8
    assert launch.counters["threadgroup_bytes"] == 1024


def test_orders_differ_and_repeat(library):
    def order_of(**policies):
        order = np.zeros(128, np.int32)
        library.launch("arrivals", {0: np.zeros(1, np.int32), 1: order}, (64,), (2,), **policies)
        return order.tolist()

    everyone = list(range(128))
    assert order_of() == everyone
    assert order_of(order=er.REVERSE) == everyone[::-1]
    random = [order_of(order=er.RANDOM, seed=seed) for seed in (1, 2, 1)]
    assert all(sorted(order) == everyone for order in random)
    assert random[0] == random[2] != random[1] and everyone not in random


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_operations_on_active_lanes_may_diverge(library, order):
    out = np.zeros(32, np.int32)
    launch = library.launch("active_in_branches", {0: out}, (32,), **order)
    assert (launch.status, launch.findings) == (er.OK, [])
    assert out.tolist() == [5] * 5 + [25] * 25 + [0] * 2


def test_dynamic_threadgroup_memory(library):
    out = np.zeros(32, np.float32)
    launch = library.launch("dynamic_memory", {0: out}, (32,), threadgroup_bytes=(0, 128))
    assert (launch.status, launch.findings) == (er.OK, [])
    assert out.tolist() == list(range(31, -1, -1))
    launch = library.launch("dynamic_memory", {0: out}, (32,), threadgroup_bytes=(0, 64))
    finding = launch.only("threadgroup_out_of_bounds")
    assert (finding["variable"], finding["byte"]) == ("[[threadgroup(1)]]", 64)


def test_references_read_zeros_where_nothing_is_bound(library):
    out = np.zeros(4, np.int32)
    params = np.array([10, 3], np.int32)
    assert library.launch("references", {0: out, 1: params}, (4,)).status == er.OK
    assert out.tolist() == [3, 13, 23, 33]


def test_function_constants(library):
    abi, out = library.abi, np.zeros(3, np.int32)

    def values():
        library.launch("constants", {0: out}, (1,))
        return out.tolist()

    scale, flag = np.array(6, np.int32), np.array(True)
    assert values() == [0, 0, -1]
    assert abi.emu_set_constant(4, scale.ctypes.data_as(er.ctypes.c_void_p), 4) == 1
    assert abi.emu_set_constant(4, scale.ctypes.data_as(er.ctypes.c_void_p), 2) == -1
    assert abi.emu_set_constant(5, scale.ctypes.data_as(er.ctypes.c_void_p), 4) == 0
    assert values() == [6, 0, -1]
    assert abi.emu_set_constant(7, flag.ctypes.data_as(er.ctypes.c_void_p), 1) == 1
    assert values() == [6, 1, 60]
    assert er.json.loads(abi.emu_constants().decode()) == [
        {"index": 4, "bytes": 4, "name": "constant_scale", "set": True},
        {"index": 7, "bytes": 1, "name": "constant_flag", "set": True},
    ]
    abi.emu_clear_constants()
    assert values() == [0, 0, -1]


def test_policies_reach_the_kernel(library):
    out = np.zeros(31, np.int32)
    orders = []
    for seed in (1, 2, 1):
        library.launch("policies", {0: out}, (1,), layout=2, time_limit_ms=90000, seed=seed)
        assert out[:2].tolist() == [2, 90000]
        orders.append(out[2:].tolist())
        assert sorted(orders[-1]) == list(range(29))
    assert orders[0] == orders[2] != orders[1]


def test_counters(library):
    launch = library.launch("counted", {}, (70,), (2,), os_threads=2)
    assert launch.counters | {"threadgroup_bytes": 0} == dict.fromkeys(er.COUNTERS, 0) | {
        "matmul_flops": 7 * 140,
        "threadgroup_barriers": 4,
        "simdgroup_barriers": 6,
        "simd_ops": 6,
    }
    assert launch.counters["threadgroup_bytes"] == 112  # Metal allocates multiples of 16


def test_inputs_may_be_read_only(library):
    pages = mmap.mmap(-1, 8 * 256 * 4, prot=mmap.PROT_READ)
    data = np.frombuffer(pages, np.float32)
    out = np.ones(8, np.float32)
    assert library.launch("reduce", {0: data, 1: out}, (256,), (8,)).status == er.OK
    assert not out.any()


def test_many_launches_leave_no_mappings_behind(library):
    def mappings():
        return len(Path("/proc/self/maps").read_text().splitlines())

    out = np.zeros((1024, 3), np.int32)
    library.launch("sums", {0: out}, (1024,))
    before = mappings()
    for _ in range(10):
        library.launch("sums", {0: out}, (1024,))
    assert mappings() <= before + 8


def test_stacks_are_kept_up_to_a_limit(library, tmp_path):
    """A process may have 65530 mappings, a stack costs two, and several libraries share a pool."""

    def n_stacks():
        sizes = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            begin, end = (int(address, 16) for address in line.split()[0].split("-"))
            sizes.append((end - begin, line.split()[1]))
        return sizes.count((256 * 1024, "rw-p"))

    other = er.Library(shutil.copy(library.path, tmp_path / "other.so"))
    for each in (library, other):
        each.abi.emu_share_stacks(POOL)
    out = np.zeros((64, 3), np.int32)
    before = n_stacks()
    for each in (library, other, library):
        each.launch("sums", {0: out}, (64,))
        assert n_stacks() == before + 64
    for n_threads in (1024, 512, 256, 128, 64, 32):
        out = np.zeros((n_threads, 3), np.int32)
        library.launch("sums", {0: out}, (n_threads,), (16,), os_threads=16)
        assert n_stacks() <= before + 8192
    assert n_stacks() > before + 64


def test_many_faults_on_many_threads(library):
    """Threads that were given up leave no lock, no mapping and no thread behind."""

    def left():
        status = Path("/proc/self/status").read_text()
        return len(Path("/proc/self/maps").read_text().splitlines()), status.count("Threads:\t1\n")

    out, flag = np.zeros((64, 3), np.int32), np.zeros(1, np.int32)
    library.launch("hang", {0: flag}, (64,), (8,), os_threads=8, time_limit_ms=100)
    before = left()
    for _ in range(25):
        assert library.launch("write_null", {}, (64,), (8,), os_threads=8).status == er.FAULT
        hang = library.launch("hang", {0: flag}, (64,), (8,), os_threads=8, time_limit_ms=5)
        assert hang.kinds == ["time_limit"]
        launch = library.launch("sums", {0: out}, (64,), (8,), os_threads=8)
        assert (launch.status, launch.findings) == (er.OK, [])
    after = left()
    assert after[0] <= before[0] + 40 and after[1] == before[1]


def test_signal_handlers_are_those_from_before(tmp_path, library):
    """A crash outside kernels still ends the process, also after a fault inside one."""
    script = tmp_path / "crash.py"
    script.write_text(
        f"""
import sys; sys.path.insert(0, {str(Path(er.__file__).parent)!r})
import faulthandler, numpy as np, emulator_runtime as er, ctypes
faulthandler.enable()
library = er.Library({str(library.path)!r})
launch = library.launch("write_null", {{}}, (1,))
assert launch.status == er.FAULT
print("alive", flush=True)
ctypes.string_at(0)
"""
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == -signal.SIGSEGV
    assert run.stdout == "alive\n"
    assert "Segmentation fault" in run.stderr and "string_at" in run.stderr


@pytest.mark.parametrize("time_limit_ms", [0, 1])
def test_signals_at_any_moment(tmp_path, library, time_limit_ms):
    """Also in the first microseconds of a thread, and while it allocates memory."""
    script = tmp_path / "hammer.py"
    script.write_text(
        f"""
import sys; sys.path.insert(0, {str(Path(er.__file__).parent)!r})
import ctypes, os, signal, threading, time
import numpy as np, emulator_runtime as er

tgkill, ended = ctypes.CDLL(None, use_errno=True).tgkill, threading.Event()

def interrupt_everyone():
    while not ended.is_set():
        for thread in os.listdir("/proc/self/task"):
            tgkill(os.getpid(), int(thread), signal.SIGURG)

hammer = threading.Thread(target=interrupt_everyone)
hammer.start()
library = er.Library({str(library.path)!r})
flag, statuses = np.zeros(1, np.int32), set()
end = time.monotonic() + 3
while time.monotonic() < end:
    launch = library.launch("counted", {{}}, (1,), (16,), os_threads=16)
    statuses.add(launch.status)
    if {time_limit_ms}:
        launch = library.launch(
            "hang", {{0: flag}}, (1,), (8,), os_threads=8, time_limit_ms={time_limit_ms})
        statuses.add(launch.status)
ended.set()
hammer.join()
print(sorted(statuses))
"""
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=20)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{[er.OK, er.FAULT] if time_limit_ms else [er.OK]}\n"
