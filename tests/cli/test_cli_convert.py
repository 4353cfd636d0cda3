import json
import os
import sys

import mlx.core as mx
import pytest
from tiny_gguf import write_gguf


@pytest.fixture
def path(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf")


def dtypes(folder):
    return {str(array.dtype) for array in mx.load(str(folder / "model.safetensors")).values()}


def test_convert_writes_a_folder_and_says_what_it_read(command, path, tmp_path):
    result = command("convert", path, tmp_path / "out")
    assert result.exit_code == 0
    out = tmp_path / "out"
    n_bytes = sum(array.nbytes for array in mx.load(str(out / "model.safetensors")).values())
    size = f"{n_bytes / 1e6:.1f} MB of weights"
    assert result.stdout == f"{out}: 5 F32, 14 Q4_1, 1 Q8_0 tensors, {size}\n"
    assert result.stderr == "converting tiny.gguf ...\n"
    assert dtypes(out) == {"mlx.core.float32", "mlx.core.uint32"}


@pytest.mark.parametrize("scales", ["float32", "float16", "bfloat16"])
def test_scales_and_dequantize(command, path, tmp_path, scales):
    assert command("convert", path, tmp_path / "a", "--scales", scales).exit_code == 0
    assert dtypes(tmp_path / "a") == {f"mlx.core.{scales}", "mlx.core.uint32"}
    arguments = ("convert", path, tmp_path / "b", "--scales", scales, "--dequantize")
    assert command(*arguments).exit_code == 0
    assert dtypes(tmp_path / "b") == {f"mlx.core.{scales}"}
    assert "quantization" not in json.loads((tmp_path / "b" / "config.json").read_text())


def test_another_folder_needs_force(command, path, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    result = command("convert", path, tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: [convert] out_dir must be new, empty")
    assert os.listdir(tmp_path / "out") == ["mine.txt"]
    assert command("convert", path, tmp_path / "out", "--force").exit_code == 0
    assert "mine.txt" not in os.listdir(tmp_path / "out")


def test_a_bad_file_is_one_line_and_leaves_nothing(command, path, tmp_path):
    path.write_bytes(path.read_bytes()[:9000])
    result = command("convert", path, tmp_path / "out")
    assert result.exit_code == 1
    assert not result.stdout
    _, line = result.stderr.splitlines()
    assert line.startswith("error: [gguf] file must be complete, got")
    assert os.listdir(tmp_path) == ["tiny.gguf"]


def test_without_tokenizers_the_message_names_the_extra(command, path, tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name.startswith("mlx_tensorops.io"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    result = command("convert", path, tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.endswith(": pip install 'mlx-tensorops[demo]'\n")
    assert "tokenizers" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("none.gguf", "out"),
        (".", "out"),
        ("tiny.gguf",),
        ("tiny.gguf", "tiny.gguf"),
        ("tiny.gguf", "out", "--scales", "int8"),
    ],
)
def test_wrong_use_is_exit_code_2(command, path, monkeypatch, arguments):
    monkeypatch.chdir(path.parent)
    result = command("convert", *arguments)
    assert result.exit_code == 2
    assert "Error" in result.stderr and not result.stdout
    assert os.listdir() == ["tiny.gguf"]
