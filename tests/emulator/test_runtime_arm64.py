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


@pytest.mark.full  # ziglang compiles a C library for arm64 first, which takes a minute
@pytest.mark.skipif(QEMU is None, reason="needs qemu-aarch64-static")
def test_runtime_on_arm64(tmp_path):
    objects = [
        er.compile_runtime(tmp_path, *TARGET),
        er.compile_kernels(HERE / "runtime_kernels.cpp", tmp_path, *TARGET),
        er.compile_kernels(HERE / "runtime_host.cpp", tmp_path, *TARGET),
    ]
    program = tmp_path / "host"
    er.run_zig("cc", *TARGET, "-static", *map(str, objects), "-o", str(program))
    run = subprocess.run([QEMU, program], capture_output=True, text=True, check=True)
    launches = [json.loads(line) for line in run.stdout.splitlines()]
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
