"""GGUF to an mlx-lm folder: exact values, the same model, clear refusals, all or nothing."""

import json
import os
import stat

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from float64_llama import logits as exact_logits
from tiny_gguf import (
    HIDDEN,
    LAYER_MATRICES,
    METADATA,
    N_HEADS,
    N_KV_HEADS,
    PROMPT,
    TOKENS,
    exact_values,
    write_gguf,
)

from mlx_tensorops.io import convert, convert_gguf

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"]
MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def values_written(folder):
    """Every weight of the folder as float32, under its GGUF name, rows in the GGUF's order."""
    config = json.loads((folder / "config.json").read_text())
    arrays = mx.load(str(folder / "model.safetensors"))
    settings = config.get("quantization", {})
    values = {}
    for name, array in arrays.items():
        path, _, part = name.rpartition(".")
        if part != "weight":
            continue
        if array.dtype == mx.uint32:
            kind = settings.get(path, settings)
            packed = [array] + [
                arrays[f"{path}.{p}"].astype(mx.float32) for p in ("scales", "biases")
            ]
            array = mx.dequantize(*packed, group_size=kind["group_size"], bits=kind["bits"])
        values[gguf_name(path)] = in_gguf_order(path, np.array(array.astype(mx.float32)), config)
    return values


def gguf_name(path):
    (short,) = (name for name, module in MODULES.items() if path.endswith(module))
    parts = path.split(".")
    prefix = f"blk.{parts[2]}." if parts[1] == "layers" else ""
    return f"{prefix}{short}.weight"


def in_gguf_order(path, rows, config):
    """Permute rows the way converters to GGUF do: the halves of each head interleaved."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for module, key in heads.items():
        if path.endswith(module):
            return (
                rows.reshape(config[key], 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)
            )
    return rows


def everything(types):
    return {name: types for name in ("token_embd", "output") + tuple(LAYER_MATRICES)}


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("dequantize", [False, True])
def test_every_value_is_exact_with_float32(tmp_path, type_name, dequantize):
    path = write_gguf(tmp_path / "m.gguf", types=everything(type_name), seed=3)
    result = convert_gguf(path, tmp_path / "out", dequantize=dequantize)
    exact, written = exact_values(path), values_written(tmp_path / "out")
    assert written.keys() == exact.keys()
    for name, expected in exact.items():
        np.testing.assert_array_equal(written[name], expected, err_msg=name)
    assert result.tensor_types == {"F32": 5, type_name: 15} if type_name != "F32" else {"F32": 20}
    stored = mx.load(str(tmp_path / "out/model.safetensors")).values()
    assert result.n_bytes == sum(array.nbytes for array in stored)
    assert not dequantize or {array.dtype for array in stored} == {mx.float32}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("key_length", [16, 24])
def test_the_folder_is_the_same_model_in_mlx_lm(tmp_path, tied, key_length):
    shapes, metadata = {}, dict(METADATA)
    if not tied:
        shapes["output"] = (len(TOKENS), HIDDEN)
    if key_length != HIDDEN // N_HEADS:
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            metadata[f"llama.{key}"] = key_length
        for i in range(2):
            shapes[f"blk.{i}.attn_q"] = (N_HEADS * key_length, HIDDEN)
            shapes[f"blk.{i}.attn_k"] = (N_KV_HEADS * key_length, HIDDEN)
            shapes[f"blk.{i}.attn_v"] = (N_KV_HEADS * key_length, HIDDEN)
            shapes[f"blk.{i}.attn_output"] = (HIDDEN, N_HEADS * key_length)
    # K = 96 and 64 both hold whole blocks; a row of attn_output has 4 * 24 = 96 values.
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata, shapes=shapes, seed=5)
    convert_gguf(path, tmp_path / "out")
    model, _ = mlx_lm.load(str(tmp_path / "out"))
    assert ("lm_head" in model) != tied
    with convert.open_gguf(path) as file:
        metadata = file.metadata
    expected = exact_logits(exact_values(path).__getitem__, metadata, PROMPT, tied=tied)
    actual = np.array(model(mx.array([PROMPT]))[0])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_is_that_of_every_floating_array(tmp_path, dtype):
    path = write_gguf(tmp_path / "m.gguf")
    convert_gguf(path, tmp_path / "out", dtype=dtype)
    arrays = mx.load(str(tmp_path / "out/model.safetensors"))
    assert {str(a.dtype) for a in arrays.values()} == {f"mlx.core.{dtype}", "mlx.core.uint32"}
    if dtype == "float16":
        exact = exact_values(path)
        for name, values in values_written(tmp_path / "out").items():
            if values.ndim > 1:
                np.testing.assert_array_equal(values, exact[name], err_msg=name)


def test_config_names_each_module_that_differs_from_the_default(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", types={"blk.1.ffn_up": "Q8_0", "blk.0.attn_v": "F16"})
    convert_gguf(path, tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    eight = {"group_size": 32, "bits": 8, "mode": "affine"}
    assert config["quantization"] == config["quantization_config"]
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": eight,
        "model.layers.1.mlp.up_proj": eight,
    }
    model, _ = mlx_lm.load(str(tmp_path / "out"))
    layers = model.model.layers
    assert layers[1].mlp.up_proj.bits == 8 and layers[0].mlp.up_proj.bits == 4
    assert layers[0].self_attn.v_proj.weight.dtype == mx.float32


def test_token_ids_come_from_the_metadata(tmp_path):
    ids = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    for end_of_turn, expected in ((None, 1), (1, 1), (2, [1, 2])):
        metadata = ids | {"tokenizer.ggml.eot_token_id": end_of_turn}
        path = write_gguf(tmp_path / "m.gguf", metadata=metadata)
        convert_gguf(path, tmp_path / "out")
        for name in ("config.json", "generation_config.json"):
            written = json.loads((tmp_path / "out" / name).read_text())
            assert (written["bos_token_id"], written["eos_token_id"]) == (0, expected)
    _, tokenizer = mlx_lm.load(str(tmp_path / "out"))
    assert tokenizer.eos_token_ids == {1, 2}


def test_progress_counts_every_tensor(tmp_path):
    seen = []
    path = write_gguf(tmp_path / "m.gguf")
    convert_gguf(path, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 20) for i in range(21)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "qwen2"}, "general.architecture must be 'llama', got 'qwen2'."),
        ({"metadata": {"llama.block_count": None}}, "metadata must have 'llama.block_count'"),
        ({"metadata": {"llama.block_count": 3}}, "must include 'blk.2.attn_norm.weight'"),
        (
            {"metadata": {"llama.block_count": 1}},
            "must be those of a plain llama model, got 'blk.1.",
        ),
        (
            {"metadata": {"llama.block_count": 4000000000}},
            "block_count must be at most the 20 tensors, got 4000000000.",
        ),
        ({"metadata": {"llama.block_count": 0}}, "block_count must be a positive integer, got 0."),
        (
            {"metadata": {"llama.block_count": "two"}},
            "llama.block_count must be a positive integer, got 'two'.",
        ),
        (
            {"metadata": {"llama.attention.head_count_kv": [2, 1]}},
            r"head_count_kv must be a positive integer, got \[2, 1\].",
        ),
        (
            {"metadata": {"llama.attention.head_count_kv": 3}},
            "multiple of head_count_kv, got 4 and 3",
        ),
        (
            {"metadata": {"llama.attention.layer_norm_rms_epsilon": None}},
            "metadata must have 'llama",
        ),
        (
            {"metadata": {"llama.rope.freq_base": float("nan")}},
            "freq_base must be a positive number, got nan.",
        ),
        ({"metadata": {"llama.rope.dimension_count": 8}}, "must be the key length, 16, got 8."),
        ({"metadata": {"llama.attention.key_length": 9}}, "key_length must be even, got 9."),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "must be 'none', got 'yarn'."),
        ({"metadata": {"llama.expert_count": 8}}, r"must be 0 \(no mixture of experts\), got 8."),
        ({"metadata": {"split.count": 2}}, r"must be 1 \(a file that is not split\), got 2."),
        ({"metadata": {"llama.feed_forward_length": 128}}, "ffn_gate.weight must have shape"),
        (
            {"metadata": {"tokenizer.ggml.tokens": None}},
            "metadata must have 'tokenizer.ggml.tokens'",
        ),
        ({"shapes": {"token_embd": (300, 64)}}, r"must have shape \(268, 64\), got \(300, 64\)."),
        ({"shapes": {"blk.0.attn_q": None}}, "tensors must include 'blk.0.attn_q.weight'"),
        ({"shapes": {"rope_freqs": (8,)}}, "plain llama model, got 'rope_freqs.weight' too."),
        (
            {"types": {"blk.0.attn_norm": "Q8_0"}},
            "attn_norm.weight must be one of F32, F16, BF16, got",
        ),
        ({"types": {"blk.0.ffn_up": "Q5_1"}}, "must be one of F32, .* got Q5_1 for 'blk.0.ffn_up"),
    ],
)
def test_what_cannot_be_converted_is_refused(tmp_path, changes, message):
    path = write_gguf(tmp_path / "m.gguf", **changes)
    with pytest.raises(ValueError, match=message):
        convert_gguf(path, tmp_path / "out")
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.filterwarnings("error")
def test_random_damage_is_converted_or_refused_with_a_value_error(tmp_path):
    content = write_gguf(tmp_path / "m.gguf").read_bytes()
    # Not the tokens: nothing but another vocabulary comes of them.
    tokens = range(*(content.index(f"tokenizer.ggml.{n}".encode()) for n in ("tokens", "merges")))
    end = content.index(b"blk.1.ffn_down") + 2000
    places = [i for i in range(4, end) if i not in tokens]
    rng = np.random.default_rng(5)
    n_refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        for place in rng.choice(places, 3):
            damaged[place] = rng.choice([0, 1, 127, 255, rng.integers(256)])
        (tmp_path / "m.gguf").write_bytes(damaged)
        try:
            convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
        except ValueError as error:
            assert str(error).startswith(("[gguf] ", "[convert] "))
            n_refused += 1
    assert n_refused > 50


def test_values_beyond_float16_are_refused(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", types={"output_norm": "F32"})
    content = bytearray(path.read_bytes())
    with convert.open_gguf(path) as file:
        start = file.tensors["output_norm.weight"].start
    content[start : start + 4] = np.array(1e5, "<f4").tobytes()
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match="output_norm.weight must be finite in float16, got .* 100000"
    ):
        convert_gguf(path, tmp_path / "out", dtype="float16")
    convert_gguf(path, tmp_path / "out", dtype="bfloat16")


def test_bad_arguments_are_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(
        ValueError, match="dtype must be one of float32, float16, bfloat16, got 'int8'"
    ):
        convert_gguf(path, tmp_path / "out", dtype="int8")
    with pytest.raises(FileNotFoundError):
        convert_gguf(tmp_path / "none.gguf", tmp_path / "out")
    with pytest.raises(ValueError, match="path must name a GGUF file"):
        convert_gguf(__file__, tmp_path / "out")
    assert os.listdir(tmp_path) == ["m.gguf"]


class TestFolder:
    """OUT_DIR is complete, or as it was before."""

    @pytest.fixture
    def path(self, tmp_path):
        (tmp_path / "in").mkdir()
        return write_gguf(tmp_path / "in" / "m.gguf")

    @pytest.fixture
    def out(self, tmp_path):
        (tmp_path / "place").mkdir()
        return tmp_path / "place" / "out"

    @pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
    def test_a_failure_leaves_nothing(self, monkeypatch, path, out, error):
        def fail(name, *_):
            with open(name, "wb") as file:
                file.write(b"half")
            raise error

        monkeypatch.setattr(mx, "save_safetensors", fail)
        with pytest.raises(type(error)):
            convert_gguf(path, out)
        assert not os.listdir(out.parent)

    @pytest.mark.parametrize("step", ["save", "rename"])
    def test_a_failure_keeps_the_earlier_result(self, monkeypatch, path, out, step):
        convert_gguf(path, out)
        before = {p.name: p.read_bytes() for p in out.iterdir()}

        def fail(*_):
            raise OSError("disk full")

        rename = os.rename

        def rename_fails_once(source, target):
            if target == out and "old" not in str(source):
                fail()
            rename(source, target)

        if step == "save":
            monkeypatch.setattr(mx, "save_safetensors", fail)
        else:
            monkeypatch.setattr(os, "rename", rename_fails_once)
        with pytest.raises(OSError, match="disk full"):
            convert_gguf(path, out, dtype="float16")
        assert {p.name: p.read_bytes() for p in out.iterdir()} == before
        assert os.listdir(out.parent) == ["out"]

    def test_a_new_nested_an_empty_and_an_earlier_folder_are_written(self, path, out):
        convert_gguf(path, out / "a" / "b")
        (out / "empty").mkdir()
        convert_gguf(path, out / "empty")
        (out / "empty" / "left-over.txt").touch()
        convert_gguf(path, out / "empty")
        names = ["config.json", "generation_config.json", "model.safetensors"]
        names += ["tokenizer.json", "tokenizer_config.json"]
        assert sorted(os.listdir(out / "empty")) == sorted(os.listdir(out / "a" / "b")) == names
        mask = os.umask(0)
        os.umask(mask)
        assert stat.S_IMODE(os.stat(out / "empty").st_mode) == 0o777 & ~mask

    @pytest.mark.parametrize("content", ["{}", '{"model_type": "llama"}', "[]", "not json"])
    def test_another_folder_needs_force(self, path, out, content):
        out.mkdir()
        (out / "config.json").write_text(content)
        (out / "thesis.txt").write_text("ten years of work")
        with pytest.raises(
            ValueError, match="must be new, empty or an earlier result unless force"
        ):
            convert_gguf(path, out)
        assert (out / "thesis.txt").read_text() == "ten years of work"
        convert_gguf(path, out, force=True)
        assert not (out / "thesis.txt").exists()

    def test_force_never_deletes_the_input_or_the_current_folder(self, monkeypatch, path, out):
        with pytest.raises(ValueError, match="must not contain the GGUF file"):
            convert_gguf(path, path.parent, force=True)
        out.mkdir()
        monkeypatch.chdir(out)
        for folder in (out, out.parent, ".", "/"):
            with pytest.raises(ValueError, match="must not contain .* the current directory"):
                convert_gguf(path, folder, force=True)
        monkeypatch.chdir("/")
        monkeypatch.setenv("HOME", str(out))
        with pytest.raises(ValueError, match="or the home directory"):
            convert_gguf(path, out, force=True)
        assert path.exists()

    def test_a_file_in_the_way_is_refused(self, path, out):
        out.write_text("x")
        with pytest.raises(ValueError, match="out_dir must be a folder, got the file"):
            convert_gguf(path, out, force=True)

    def test_a_link_keeps_pointing_to_the_result(self, path, out):
        (out.parent / "real").mkdir()
        out.symlink_to(out.parent / "real")
        convert_gguf(path, out)
        assert out.is_symlink() and (out.parent / "real" / "config.json").exists()
