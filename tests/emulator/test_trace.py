"""Libraries that watch every access: planted faults, and Apple's kernels, which have none."""

import re

import apple_kernels as ak
import numpy as np
import pytest

from mlx_tensorops.testing import emulator

SOURCE = """#include <metal_stdlib>
using namespace metal;

kernel void reversed(const device float* x, device float* y,
    uint i [[thread_position_in_threadgroup]], uint g [[thread_position_in_grid]]) {
  threadgroup float t[64];
  t[i] = x[g];
#ifndef WITHOUT_BARRIER
  threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  y[g] = t[63 - i];
}
kernel void unwritten(device float* y, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float t[64];
  if (i < 63) t[i] = i;
  y[i] = t[i];
}
kernel void added(device float* y, uint i [[thread_position_in_threadgroup]]) {
  y[i] += 1;
}
kernel void operation(device float* y, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float t[64];
  simdgroup_float8x8 m(3);
  simdgroup_store(m, t, 8);
  y[i] = t[i];
}
kernel void one_byte(device uchar* y, const device uchar* x) {
  y[0] = x[5];
}
"""


def line_of(text):
    return next(n for n, line in enumerate(SOURCE.splitlines(), 1) if text in line)


def launch(name, buffers, n_threads, n_groups=1, **defines):
    library = emulator.compile(SOURCE, trace=True, defines=defines, name="trace.metal")
    grid, threadgroup = (n_groups,), (n_threads,)
    return library.pipeline(name).launch(buffers, grid=grid, threadgroup=threadgroup, check=False)


def kinds(result):
    return {finding.kind for finding in result.findings if finding.severity != "note"}


def floats(n):
    return np.zeros(n, np.float32)


def test_bytes_are_counted():
    result = launch("reversed", {0: floats(128), 1: floats(128)}, 64, 2)
    assert result.findings == ()
    assert result.buffer_bytes == {0: (512, 0), 1: (0, 512)}
    counted = {name: result.counters[name] for name in result.counters if name.endswith("_bytes")}
    assert counted == {
        "threadgroup_bytes": 256,
        "threadgroup_read_bytes": 512,
        "threadgroup_written_bytes": 512,
        "device_read_bytes": 512,
        "device_written_bytes": 512,
    }


def test_a_missing_barrier_is_a_race():
    result = launch("reversed", {0: floats(128), 1: floats(128)}, 64, 2, WITHOUT_BARRIER=1)
    assert "threadgroup_race" in kinds(result)
    places = {
        (finding.place, finding.other_place)
        for finding in result.findings
        if finding.kind == "threadgroup_race"
    }
    load, store = (f"trace.metal:{line_of(text)}" for text in ("y[g] = t", "t[i] = x"))
    assert (load, store) in places


def test_a_race_with_an_operation_names_where_it_was_called():
    result = launch("operation", {0: floats(32)}, 32)
    finding = result.findings[0]
    assert finding.kind == "threadgroup_race"
    store = line_of("simdgroup_store")
    places = (finding.place, finding.other_place)
    assert places == (f"trace.metal:{store + 1}", f"trace.metal:{store}")


def test_unwritten_threadgroup_memory_is_noticed():
    result = launch("unwritten", {0: floats(64)}, 64)
    (finding,) = result.findings
    assert finding.kind == "uninitialised_threadgroup_memory"
    assert (finding.lane, finding.place) == (63, f"trace.metal:{line_of('y[i] = t[i]')}")


def test_threadgroups_race_on_device_memory():
    assert kinds(launch("added", {0: floats(64)}, 64, 1)) == set()
    assert kinds(launch("added", {0: floats(64)}, 64, 2)) == {"device_race"}


def test_a_byte_too_far_is_noticed():
    result = launch("one_byte", {0: np.zeros(1, np.uint8), 1: np.zeros(5, np.uint8)}, 1)
    (finding,) = result.findings
    assert (finding.argument, finding.byte, finding.kind) == ("x", 5, "device_out_of_bounds")


BARRIER = re.compile(r"threadgroup_barrier\([^;]*\);")


def softmax(name, n_threads, without=None):
    """Apple's softmax, with one barrier less."""
    path = ak.include_folder() / "mlx/backend/metal/kernels/softmax.h"
    text = path.read_text()
    if without is not None:
        barrier = list(BARRIER.finditer(text))[without]
        text = text[: barrier.start()] + text[barrier.end() :]
    library = emulator.compile(
        ak.source("defines.h", "utils.h") + text,
        include_dirs=[ak.include_folder()],
        instantiations={name: f"{name}<float>"},
        trace=True,
    )
    x = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    return library.pipeline(name).launch(
        {0: x, 1: np.zeros_like(x), 2: 1000}, grid=(2,), threadgroup=(n_threads,), check=False
    )


@pytest.mark.parametrize(
    ("name", "n_threads"), [("softmax_single_row", 256), ("softmax_looped", 1024)]
)
def test_softmax_is_clean(name, n_threads):
    result = softmax(name, n_threads)
    assert result.findings == ()
    assert result.buffer_bytes[1] == (0, 8000)


def test_softmax_looped_needs_all_its_simdgroups():
    """It reads what 32 simdgroups wrote, as MLX launches it with 1024 threads."""
    assert kinds(softmax("softmax_looped", 256)) == {"uninitialised_threadgroup_memory"}


@pytest.mark.parametrize("barrier", range(7))
def test_every_barrier_of_softmax_is_needed(barrier):
    name, n_threads = ("softmax_single_row", 256) if barrier < 5 else ("softmax_looped", 1024)
    assert "threadgroup_race" in kinds(softmax(name, n_threads, without=barrier))
