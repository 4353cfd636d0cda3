import re
import sys

import mlx.core as mx
import pytest
from emulated_only import ELSEWHERE

from mlx_tensorops.verification import KernelWarning


@pytest.fixture(autouse=True)
def _on_cpu(tmp_path, monkeypatch):
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    monkeypatch.setenv("MLX_TENSOROPS_VERDICTS", str(tmp_path / "verdicts"))
    yield
    mx.set_default_device(before)


@pytest.fixture
def emulated():
    if sys.platform != "linux":
        pytest.skip(ELSEWHERE)
    from mlx_tensorops.testing import emulated_metal

    return emulated_metal


ONE_OP = ("--op", "dequantize", "--bits", 3, "--group-size", 32)
NAMES = [f"dequantize_affine_{t}_{t}_{t}_3_32" for t in ("bfloat", "float", "half")]


def rows(output):
    return dict(re.findall(r"\u2502 (\w+) +\u2502 (.*?) +\u2502", output))


def test_without_metal(command):
    result = command("selftest")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: MLX's default device runs no Metal kernels: Device(cpu")


def test_right_kernels(command, emulated, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    with emulated(verify=True) as run:
        result = command("selftest", *ONE_OP)
    assert result.exit_code == 0 and len(run.trials) == 6
    assert rows(result.stdout) == dict.fromkeys(NAMES, "right")
    assert "3 kernels are right, 0 are not used" in result.stdout
    with emulated(verify=True) as run:
        result = command("selftest", *ONE_OP)
    assert rows(result.stdout) == dict.fromkeys(NAMES, "right (known before)")
    assert run.trials == []
    with emulated(verify=True) as run:
        assert command("selftest", "--fresh", *ONE_OP).exit_code == 0
    assert len(run.trials) == 6


def test_other_modes(command, emulated, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with emulated(verify=True):
        result = command("selftest", *ONE_OP, "--mode", "q4_k", "--mode", "nf4")
    assert result.exit_code == 0
    found = rows(result.stdout)
    assert set(found.values()) == {"right"} and len(found) == 9
    assert sum("Q4_K" in name for name in found) == sum("Nf4Codes" in name for name in found) == 3


def test_a_wrong_kernel(command, emulated, monkeypatch, recwarn):
    monkeypatch.setenv("COLUMNS", "200")

    def edit(source):
        return source.replace("scale, bias));", "scale, bias) + (sizeof(S) == 4 ? 1.0f : 0.0f));")

    with emulated(verify=True, edit_source=edit):
        result = command("selftest", *ONE_OP)
    assert result.exit_code == 1
    verdicts = rows(result.stdout)
    assert [name for name in NAMES if verdicts[name] == "right"] == [NAMES[0], NAMES[2]]
    assert "values are wrong, at (0, 0)" in verdicts[NAMES[1]]
    assert "2 kernels are right, 1 are not used" in result.stdout
    assert not [w for w in recwarn if issubclass(w.category, KernelWarning)]


def test_an_old_system(command, emulated):
    with emulated(macos=(15, 5), verify=True):
        result = command("selftest")
    assert result.exit_code == 1
    assert "no Metal kernel of this package runs here: macOS 15.5 (26.2 is needed)" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--op", "attention"),
            "op must be one of quantize, dequantize, quantized_matmul, "
            "scaled_dot_product_attention, scaled_dot_product_attention_vjp, "
            "quantized_scaled_dot_product_attention, got attention",
        ),
        (("--bits", 7), "bits must be one of 1, 2, 3, 4, 5, 6, 8"),
    ],
)
def test_bad_options(command, emulated, options, message):
    with emulated(verify=True):
        result = command("selftest", *options)
    assert result.exit_code == 1 and message in " ".join(result.stderr.split())


def test_attention(command, emulated, monkeypatch):
    """Every kernel of its forward pass, and every option."""
    monkeypatch.setenv("COLUMNS", "200")
    with emulated(verify=True):
        result = command("selftest", "--op", "scaled_dot_product_attention")
    verdicts = rows(result.stdout)
    assert result.exit_code == 0 and set(verdicts.values()) == {"right"}
    for kernel in ("attention_forward_half", "attention_forward_wide_bfloat", "few_queries_float"):
        assert any(kernel in name for name in verdicts)
    without = "_c0_0_c1_0_c2_0_c3_0_c4_0_c5_0_c6_0_c7_0"
    options = {name[-len(without) :] for name in verdicts if name.startswith("attention_forward")}
    assert len(options) == 8


def test_gradients_of_attention(command, emulated, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    module = sys.modules["mlx_tensorops.cli.selftest"]
    monkeypatch.setattr(module, "_ATTENTION_VJP", ({"queries": 20, "keys": 20},))
    monkeypatch.setattr(module, "_HAVING", ("mask", "alibi"))
    with emulated(verify=True):
        result = command("selftest", "--op", "scaled_dot_product_attention_vjp")
    verdicts = rows(result.stdout)
    assert result.exit_code == 0 and set(verdicts.values()) == {"right"}
    for kernel in ("grad_rows_float", "grad_bfloat", "mask_grad_half", "alibi_grad"):
        assert any(f"attention_{kernel}" in name for name in verdicts)
