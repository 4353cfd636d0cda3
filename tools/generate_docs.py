"""Write the generated mlx_tensorops/_ext.pyi and SUPPORT.md, or check that they are fresh."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import mlx.core as mx
import typer
from nanobind.stubgen import StubGen

import mlx_tensorops as mto
from mlx_tensorops import _ext

ROOT = Path(__file__).parent.parent
BACKENDS = ("cpu", "metal", "cuda")
DTYPES = (mx.float32, mx.float16, mx.bfloat16)
MODES = {
    "affine": ((1, 2, 3, 4, 5, 6, 8), (32, 64, 128)),
    "mxfp4": ((4,), (32,)),
    "mxfp8": ((8,), (32,)),
    "nvfp4": ((4,), (16,)),
}
HEAD_DIMS = ((40, 40), (64, 64), (72, 72), (80, 80), (96, 64), (128, 128), (192, 128), (256, 256))
HEAD_DIMS += ((512, 512), (576, 512), (576, 576), (640, 640))
OPS = ("quantize", "dequantize", "quantized_matmul")


def support_table() -> str:
    """One row an op and mode, one column a backend, and the sums."""
    lines = ["| op | mode | bits | group sizes | " + " | ".join(BACKENDS) + " |"]
    lines.append("|---" * (4 + len(BACKENDS)) + "|")
    covered = dict.fromkeys(BACKENDS, 0)
    total = 0
    for op in OPS:
        for mode, (all_bits, groups) in MODES.items():
            cases = [(d, b, g, mode) for d in DTYPES for b in all_bits for g in groups]
            total += len(cases)
            counts = []
            for backend in BACKENDS:
                n = sum(not _ext.supports(op, backend, *case) for case in cases)
                covered[backend] += n
                counts.append(f"{n} / {len(cases)}")
            values = (op, mode, ", ".join(map(str, all_bits)), ", ".join(map(str, groups)), *counts)
            lines.append("| " + " | ".join(values) + " |")
    fallbacks = (f"{total - covered[backend]} of {total}" for backend in BACKENDS)
    lines.append("| **cells that fall back** | | | | " + " | ".join(fallbacks) + " |")
    return "\n".join(lines) + "\n"


def formats_table() -> str:
    """One row a mode: its geometry, and the backends of each op."""
    lines = ["| mode | bits | w | scales | values that share a scale | " + " | ".join(OPS) + " |"]
    lines.append("|---" * (5 + len(OPS)) + "|")
    for info in mto.formats().values():
        bits = info.bits or f"{info.block_bytes} bytes a block of {info.block}"
        rows, columns = (n or "all" for n in info.group_size)
        group = str(columns) if rows == 1 else f"{rows} x {columns}"
        scales = info.scales + (f", {info.third}" if info.third else "")
        backends = (", ".join(info.ops.get(op, ())) or "-" for op in OPS)
        cells = (f"`{info.mode}`", str(bits), info.dtype, scales, group, *backends)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def attention_table() -> str:
    """One row a pair of head dimensions, one column a backend."""
    lines = ["| d of q and k | d of v | " + " | ".join(BACKENDS) + " |"]
    lines.append("|---" * (2 + len(BACKENDS)) + "|")
    for d, d_v in HEAD_DIMS:
        counts = [
            f"{sum(not _ext.supports_attention(b, dtype, d, d_v) for dtype in DTYPES)}"
            f" / {len(DTYPES)}"
            for b in BACKENDS
        ]
        lines.append("| " + " | ".join((str(d), str(d_v), *counts)) + " |")
    return "\n".join(lines) + "\n"


def public_names() -> str:
    """Every public name with the first sentence of its documentation."""
    lines = []
    for name in mto.__all__:
        sentence = (getattr(mto, name).__doc__ or "").strip().split("\n\n")[0]
        lines.append(f"- `{name}`: {' '.join(sentence.split())}")
    return "\n".join(lines)


def stub() -> str:
    """The extension's signatures, formatted like the rest."""
    generator = StubGen(_ext)
    generator.put(_ext)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "_ext.pyi"
        path.write_text(generator.get())
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(path)], check=True)
        return path.read_text()


def main(
    check: Annotated[bool, typer.Option(help="Write nothing; fail on stale files.")] = False,
) -> None:
    """Write the generated files, or check them."""
    dtypes = ", ".join(str(dtype).removeprefix("mlx.core.") for dtype in DTYPES)
    template = (ROOT / "tools" / "SUPPORT.md.in").read_text()
    support = template.format(
        dtypes=dtypes,
        table=support_table(),
        formats_table=formats_table(),
        attention_table=attention_table(),
        names=public_names(),
    )
    stale = []
    for name, text in {"SUPPORT.md": support, "mlx_tensorops/_ext.pyi": stub()}.items():
        path = ROOT / name
        if path.exists() and path.read_text() == text:
            continue
        if check:
            stale.append(name)
        else:
            path.write_text(text)
    if stale:
        raise SystemExit(f"stale, run `make docs`: {', '.join(stale)}")


if __name__ == "__main__":
    typer.run(main)
