"""The runtime on arm64: fibers, and the context of a signal, are different code there."""

import json
import shutil
import subprocess
from pathlib import Path

import emulator_runtime as er
import pytest

HERE = Path(__file__).parent
TARGET = ("-target", "aarch64-linux-musl")
QEMU = shutil.which("qemu-aarch64-static")


# ziglang compiles a C library for arm64 first, which takes a minute.
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(QEMU is None, reason="needs qemu-aarch64-static"),
]


def launches_of(tmp_path, kernels, host, watch):
    """What the host program prints when it launches its kernels on an emulated arm64."""
    macros = {"accesses": ["-DEMU_TRACE"], "values": ["-DEMU_VALUES"]}.get(watch, [])
    objects = [
        er.compile_runtime(tmp_path, *TARGET, *macros),
        er.compile_kernels(HERE / kernels, tmp_path, *TARGET, watch=watch),
        er.compile_kernels(HERE / host, tmp_path, *TARGET),
    ]
    program = tmp_path / "host"
    er.run_zig("cc", *TARGET, "-static", *map(str, objects), "-o", str(program))
    run = subprocess.run([QEMU, program], capture_output=True, text=True, check=True)
    launches, text = [], run.stdout
    while text:
        launch, end = json.JSONDecoder().raw_decode(text)
        launches.append(launch)
        text = text[end:].lstrip()
    return launches


def test_runtime_on_arm64(tmp_path):
    launches = launches_of(tmp_path, "runtime_kernels.cpp", "runtime_host.cpp", "nothing")
    sums = [launch for launch in launches if launch["kernel"] == "sums"]
    assert len(sums) == 4
    for launch in sums:
        assert (launch["status"], launch["findings"]) == (er.OK, [])
        assert launch["out"][:3] == [496, 6, 2415] and launch["out"][-3:] == [399, 137, 2415]
    kinds = {
        launch["kernel"]: (launch["status"], launch["findings"][0]["kind"])
        for launch in launches
        if launch["findings"]
    }
    assert kinds == {
        "write_far_past_end": (er.FAULT, "device_out_of_bounds"),
        "write_null": (er.FAULT, "wild_access"),
        "overflow_stack": (er.FAULT, "stack_overflow"),
        "barrier_after_exit": (er.OK, "barrier_with_exited_threads"),
        "hang": (er.FAULT, "time_limit"),
    }
    (stray,) = [launch for launch in launches if launch["kernel"] == "write_far_past_end"]
    (finding,) = stray["findings"]
    assert (finding["buffer"], finding["byte"], finding["lane"]) == (0, 4000020, 5)


def test_accesses_on_arm64(tmp_path):
    launches = launches_of(tmp_path, "trace_kernels.cpp", "trace_host.cpp", "accesses")
    found = {
        (launch["kernel"], launch["mutant"]): {finding["kind"] for finding in launch["findings"]}
        for launch in launches
    }
    assert found == {
        ("reduce", 0): set(),
        ("reduce", 1): {"threadgroup_race", "uninitialised_threadgroup_memory"},
        ("reduce", 2): {"threadgroup_race"},
        ("read_slack", 0): {"device_out_of_bounds"},
        ("read_far_outside", 0): {"device_out_of_bounds"},
        ("threadgroup_slack", 0): {"threadgroup_out_of_bounds"},
        ("uninitialised", 0): {"uninitialised_threadgroup_memory"},
    }
    right = launches[0]
    assert (right["read"], right["written"]) == (3 * 128 * 4, 3 * 4)
    assert right["out"] == sum(i % 7 for i in range(128))


def test_values_on_arm64(tmp_path):
    launches = launches_of(tmp_path, "runtime_kernels.cpp", "runtime_host.cpp", "values")
    right = [launch for launch in launches if launch["kernel"] == "sums"]
    assert [launch["findings"] for launch in right] == [[]] * 4
    (wrong,) = [launch for launch in launches if launch["kernel"] == "read_uninitialised"]
    (finding,) = wrong["findings"]
    assert finding["kind"] == "uninitialised_value" and finding["lane"] == 13
