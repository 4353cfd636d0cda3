import json
import platform
from importlib.metadata import version

import mlx.core as mx

from mlx_tensorops import __version__, _ext


def test_json_has_what_the_extension_says(command):
    result = command("info", "--json")
    assert result.exit_code == 0 and not result.stderr
    facts = json.loads(result.stdout)
    assert facts["mlx"] == version("mlx")
    assert facts["mlx-tensorops"] == __version__
    assert facts["python"] == platform.python_version()
    assert facts["instruction set"] == _ext.cpu_isa()
    assert facts["threads"] == _ext.num_threads()
    assert facts["MLX device"] == str(mx.default_device())
    rows = {(row["op"], row["backend"]): row for row in facts["supports"]}
    for op in ("quantize", "dequantize", "quantized_matmul"):
        row = rows[op, "cpu"]
        assert row["bits"] == [1, 2, 3, 4, 5, 6, 8]
        assert row["group_sizes"] == [16, 32, 64, 128, 256]
        assert {"mxfp4", "nf4", "fp8_e4m3"} <= set(row["modes"])
        assert row["dtypes"] == ["bfloat16", "float16", "float32"]


def test_text_has_one_line_a_fact(command):
    lines = command("info").stdout.splitlines()
    assert f"{'instruction set':<20} {_ext.cpu_isa()}" in lines
    row = "cpu, affine: bfloat16 float16 float32; bits 1 2 3 4 5 6 8; groups of 16 32 64 128 256"
    assert f"{'quantized_matmul':<20} {row}" in lines


def test_a_package_that_is_not_there_is_said(command, monkeypatch):
    from mlx_tensorops.cli import info

    monkeypatch.setattr(info, "_PACKAGES", ("mlx", "no-such-package"))
    assert f"{'no-such-package':<20} not installed" in command("info").stdout.splitlines()
