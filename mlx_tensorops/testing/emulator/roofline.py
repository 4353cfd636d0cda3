"""A roofline estimate: the least time that a chip of Apple's would need for a counted launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Floating operations of one GPU core in one cycle.
# Shader code: 128 lanes with a fused multiply-add each, half no faster than float
# (github.com/philipturner/metal-benchmarks; M5: 3.76 TFLOPS measured on 10 cores at 1.578 GHz,
# michaelstinkerings.org/apple-m5-gpu-roofline-analysis). Chips before M5 run matmul2d as such code,
# and so does M5 with float operands that may not lose precision, or with simdgroup_matrix.
_SHADER_FLOPS = 256
# The matrix unit in each core of M5: 16-bit floats, and float with relaxed_precision, at four times
# that, 8-bit integers at eight times (measured on A19: tzakharko.github.io/
# apple-neural-accelerators-benchmark). 40 cores at 1.578 GHz then give 65 TFLOPS and 129 TOPS;
# about 60 and 118 were measured on M5 Max.
_MATRIX_FLOPS = 1024
_MATRIX_INTEGER_OPS = 2048


@dataclass(frozen=True)
class Chip:
    """Public figures of a chip.

    Attributes:
        name: as Apple writes it, without "Apple".
        gpu_cores: of the largest GPU sold under this name.
        bandwidth_gbps: of the unified memory, in 10^9 bytes a second.
        clock_ghz: the highest of the GPU, which Apple does not publish.
        has_matrix_units: whether each GPU core has a neural accelerator.
    """

    name: str
    gpu_cores: int
    bandwidth_gbps: float
    clock_ghz: float
    has_matrix_units: bool = False

    def flops(self, kind: str) -> float:
        """Operations a second: kind is "shader", "matrix" or "integer"."""
        rates = {"shader": _SHADER_FLOPS, "matrix": _SHADER_FLOPS, "integer": _SHADER_FLOPS}
        if self.has_matrix_units:
            rates |= {"matrix": _MATRIX_FLOPS, "integer": _MATRIX_INTEGER_OPS}
        return self.gpu_cores * self.clock_ghz * 1e9 * rates[kind]


# Cores and bandwidth: Apple's press releases (apple.com/newsroom) of 2020-11-10 (M1), 2021-10-18
# (M1 Pro, Max), 2022-03-08 (M1 Ultra), 2022-06-06 (M2), 2023-01-17 (M2 Pro, Max), 2023-06-05
# (M2 Ultra), 2023-10-30 (M3 family), 2025-03-05 (M3 Ultra), 2024-05-07 (M4), 2024-10-30 (M4 Pro,
# Max), 2025-10-15 (M5), 2026-03-03 (M5 Pro, Max). The bandwidth of M1 is that of its memory
# (128 bits of LPDDR4X-4266). M5 Ultra: Apple's 1.2 TB/s, of which 1.09 were measured, on two dies
# (github.com/kennss/SiliconScope, release 4.9.2); its cores are twice those of M5 Max.
# Clocks: 1.278 (M1), 1.398 (M2, M3) and 1.578 (M4; 1.47 is published, too), hmc-tech.com/gpu;
# M5 as above. They agree with the teraflops that Apple published for M1 and M2 (2.6 and 3.6).
CHIPS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("M1", 8, 68.3, 1.278),
        Chip("M1 Pro", 16, 200, 1.278),
        Chip("M1 Max", 32, 400, 1.278),
        Chip("M1 Ultra", 64, 800, 1.278),
        Chip("M2", 10, 100, 1.398),
        Chip("M2 Pro", 19, 200, 1.398),
        Chip("M2 Max", 38, 400, 1.398),
        Chip("M2 Ultra", 76, 800, 1.398),
        Chip("M3", 10, 100, 1.398),
        Chip("M3 Pro", 18, 150, 1.398),
        Chip("M3 Max", 40, 400, 1.398),
        Chip("M3 Ultra", 80, 819, 1.398),
        Chip("M4", 10, 120, 1.578),
        Chip("M4 Pro", 20, 273, 1.578),
        Chip("M4 Max", 40, 546, 1.578),
        Chip("M5", 10, 153, 1.578, True),
        Chip("M5 Pro", 20, 307, 1.578, True),
        Chip("M5 Max", 40, 614, 1.578, True),
        Chip("M5 Ultra", 80, 1200, 1.578, True),
    )
}


@dataclass(frozen=True)
class Estimate:
    """An estimate, never a measurement: what a launch needs at least, if nothing else cost time.

    Ordinary arithmetic, threadgroup memory, barriers, latency, occupancy and the launch itself are
    left out, and the peak rates are never reached in full.

    Attributes:
        chip: whose figures were taken.
        bandwidth_s: seconds to move each byte that was touched once, as a perfect cache would; the
            buffers that were read or written by a part count with that part.
        uncached_s: seconds to move the bytes of every thread, as if there were no cache.
        matrix_s: seconds for the operations of matmul2d and simdgroup_matrix.
    """

    chip: Chip
    bandwidth_s: float
    uncached_s: float
    matrix_s: float

    @classmethod
    def of(
        cls,
        counters: Mapping[str, int],
        buffer_bytes: Mapping[int, tuple[int, int]],
        buffer_sizes: Mapping[int, int],
        chip: str | Chip,
    ) -> Estimate:
        """The estimate for a launch with these costs; use `Launch.estimate`."""
        chip = _chip(chip)
        once = sum(
            min(n_bytes, buffer_sizes[index])
            for index, pair in buffer_bytes.items()
            for n_bytes in pair
        )
        every = sum(map(sum, buffer_bytes.values()))
        rate = chip.bandwidth_gbps * 1e9
        return cls(chip, once / rate, every / rate, _matrix_seconds(counters, chip))

    @property
    def seconds(self) -> float:
        """The larger of the two bounds."""
        return max(self.bandwidth_s, self.matrix_s)

    @property
    def bound(self) -> str:
        """Which of them it is: "bandwidth" or "matrix"."""
        return "matrix" if self.matrix_s > self.bandwidth_s else "bandwidth"

    def __str__(self) -> str:
        micro = (f"{1e6 * x:.3g} us" for x in (self.seconds, self.bandwidth_s, self.matrix_s))
        least, bandwidth, matrix = micro
        return (
            f"estimate for {self.chip.name} ({self.chip.gpu_cores} GPU cores), not a measurement: "
            f"at least {least}, bound by {self.bound} "
            f"(bandwidth {bandwidth}, {1e6 * self.uncached_s:.3g} us without caches; "
            f"matrix {matrix})"
        )


def _chip(chip: str | Chip) -> Chip:
    if isinstance(chip, Chip):
        return chip
    if chip not in CHIPS:
        raise ValueError(f"[estimate] chip must be one of {', '.join(CHIPS)}, got {chip}.")
    return CHIPS[chip]


def _matrix_seconds(counters: Mapping[str, int], chip: Chip) -> float:
    shader = counters["simdgroup_matrix_flops"] + counters["strict_float_flops"]
    integer = counters["integer_flops"]
    matrix = counters["matmul_flops"] - shader - integer
    parts = {"shader": shader, "integer": integer, "matrix": matrix}
    return sum(count / chip.flops(kind) for kind, count in parts.items())
