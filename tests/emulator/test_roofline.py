"""Roofline estimates, against numbers by hand."""

import numpy as np
import pytest

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import CHIPS, Chip, Estimate

ROUND = Chip("Round", gpu_cores=10, bandwidth_gbps=100, clock_ghz=1.0)
ACCELERATED = Chip("Accelerated", 10, 100, 1.0, has_matrix_units=True)
NO_WORK = dict.fromkeys(
    ("matmul_flops", "simdgroup_matrix_flops", "strict_float_flops", "integer_flops"), 0
)


def estimate(chip, bytes_by_buffer, sizes, **work):
    return Estimate.of(NO_WORK | work, bytes_by_buffer, sizes, chip)


def test_bytes_move_once_at_best():
    # Buffer 0 is read four times, of buffer 1 a tenth is read, buffer 2 is read and written.
    got = estimate(
        ROUND,
        {0: (4_000_000, 0), 1: (50_000, 0), 2: (250_000, 250_000)},
        {0: 1_000_000, 1: 500_000, 2: 250_000},
    )
    assert got.bandwidth_s == pytest.approx(1_550_000 / 100e9)
    assert got.uncached_s == pytest.approx(4_550_000 / 100e9)
    assert (got.bound, got.seconds, got.matrix_s) == ("bandwidth", got.bandwidth_s, 0)


@pytest.mark.parametrize(
    ("work", "shader_us", "accelerated_us"),
    [
        # 10 cores at 1 GHz: 2.56 T operations a second, or 10.24 T, or 20.48 T of integers.
        ({"matmul_flops": 10_240_000}, 4.0, 1.0),
        ({"matmul_flops": 10_240_000, "strict_float_flops": 10_240_000}, 4.0, 4.0),
        ({"matmul_flops": 10_240_000, "simdgroup_matrix_flops": 10_240_000}, 4.0, 4.0),
        ({"matmul_flops": 10_240_000, "integer_flops": 10_240_000}, 4.0, 0.5),
        ({"matmul_flops": 10_240_000, "integer_flops": 5_120_000}, 4.0, 0.75),
    ],
)
def test_operations_at_their_rate(work, shader_us, accelerated_us):
    for chip, expected in ((ROUND, shader_us), (ACCELERATED, accelerated_us)):
        got = estimate(chip, {0: (100, 0)}, {0: 100}, **work)
        assert got.matrix_s * 1e6 == pytest.approx(expected)
        assert (got.bound, got.seconds) == ("matrix", got.matrix_s)


def test_chips_give_the_published_rates():
    """Teraflops as Apple gave them for M1 and M2; M5 Max as measured, within ten percent."""
    published = {"M1": 2.6, "M1 Pro": 5.2, "M1 Max": 10.4, "M1 Ultra": 21, "M2": 3.6}
    for name, teraflops in published.items():
        assert CHIPS[name].flops("shader") / 1e12 == pytest.approx(teraflops, rel=0.03)
    assert CHIPS["M5"].flops("shader") / 1e12 == pytest.approx(3.76 / 0.944, rel=0.03)
    assert CHIPS["M5 Max"].flops("matrix") / 1e12 == pytest.approx(60, rel=0.1)
    assert CHIPS["M5 Max"].flops("integer") / 1e12 == pytest.approx(117.8, rel=0.1)
    for name, chip in CHIPS.items():
        assert chip.name == name
        assert chip.has_matrix_units == name.startswith("M5")
        assert chip.flops("matrix") / chip.flops("shader") == (4 if name.startswith("M5") else 1)


def test_each_generation_is_complete():
    sizes = {n: {name for name in CHIPS if name.split()[0] == f"M{n}"} for n in range(1, 6)}
    for n, names in sizes.items():
        wanted = {f"M{n}", f"M{n} Pro", f"M{n} Max"} | ({f"M{n} Ultra"} if n != 4 else set())
        assert names == wanted  # there is no M4 Ultra


SOURCE = """#include <metal_stdlib>
using namespace metal;
kernel void scaled(const device float* x, device float* y, constant float* factor,
    uint i [[thread_position_in_grid]]) {
  y[i] = x[i] * factor[0];
}
"""


def launch(trace):
    kernel = emulator.compile(SOURCE, trace=trace).pipeline("scaled")
    x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    return kernel.launch({0: x, 1: y, 2: np.ones(1, np.float32)}, (64,), (64,))


def test_a_launch_is_estimated():
    got = launch(trace=True).estimate("M4 Max")
    # 16 KiB in and out at 546 GB/s; the factor is constant and does not count.
    assert got.bandwidth_s == got.uncached_s == pytest.approx(2 * 16384 / 546e9)
    assert str(got) == (
        "estimate for M4 Max (40 GPU cores), not a measurement: at least 0.06 us, bound by "
        "bandwidth (bandwidth 0.06 us, 0.06 us without caches; matrix 0 us)"
    )
    assert launch(trace=True).estimate(ROUND).bandwidth_s == pytest.approx(2 * 16384 / 100e9)


def test_bad_estimates():
    with pytest.raises(ValueError, match=r"\[estimate\] chip must be one of M1, .*, got M4 Ultra"):
        launch(trace=True).estimate("M4 Ultra")
    with pytest.raises(ValueError, match="must be compiled with trace=True"):
        launch(trace=False).estimate("M5")
