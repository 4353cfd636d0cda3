"""register_format: a format of a user's own in every op, on the CPU and in emulated Metal."""

import doctest
import itertools
import re
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from cases import CPU
from emulated_only import ELSEWHERE
from tolerance import assert_same_bits

import mlx_tensorops as mto
from mlx_tensorops import user_format
from mlx_tensorops.testing import emulated_metal
from mlx_tensorops.verification import KernelWarning

NAMES = (f"test_format_{i}" for i in itertools.count())
# A codebook of 16 levels in the block itself, two scales, 6 bits of a value.
FIELDS = [
    ("levels", "int8", 16),
    ("scales", "float16", 2),
    ("offset", "bfloat16", 1),
    ("codes", "uint8", 16),
]
DECODE = """
  int code = codes[i / 2] >> (i % 2 * 4) & 15;
  return scales[i / 16] * float(levels[code]) + offset;
"""
LAYOUT = np.dtype(
    [("levels", "i1", 16), ("scales", "<f2", 2), ("offset", "<u2"), ("codes", "u1", 16)]
)


@pytest.fixture(scope="module")
def mode():
    name = next(NAMES)
    mto.register_format(name, 32, FIELDS, decode_cpp=DECODE, decode_metal=DECODE)
    return name


def blocks(n_rows, n_blocks, seed=0):
    """Random blocks as bytes, and their values."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((n_rows, n_blocks), LAYOUT)
    rows["levels"] = rng.integers(-128, 128, (n_rows, n_blocks, 16))
    rows["scales"] = rng.standard_normal((n_rows, n_blocks, 2)) / 64
    offset = rng.standard_normal((n_rows, n_blocks)).astype(np.float32)
    rows["offset"] = offset.view(np.uint32) >> 16
    rows["codes"] = rng.integers(0, 256, (n_rows, n_blocks, 16))
    codes = np.stack([rows["codes"] & 15, rows["codes"] >> 4], -1).reshape(n_rows, n_blocks, 32)
    levels = np.take_along_axis(rows["levels"], codes.astype(int), -1).astype(np.float32)
    scales = np.repeat(rows["scales"].astype(np.float32), 16, -1)
    offsets = (rows["offset"].astype(np.uint32) << 16).view(np.float32)[..., None]
    values = (scales * levels + offsets).reshape(n_rows, -1)
    octets = np.ascontiguousarray(rows).view(np.uint8).reshape(n_rows, -1)
    return mx.array(octets), values


def test_dequantize(mode, backend):
    w, values = blocks(7, 3)
    actual = mto.dequantize(w, mode=mode, force_fused=True, stream=backend.device)
    assert_same_bits(actual, mx.array(values), mode)


@pytest.mark.parametrize(("n_rows", "transpose"), [(2, True), (40, True), (3, False)])
def test_quantized_matmul(mode, backend, n_rows, transpose):
    w, values = blocks(24, 4)
    dense = values.T if transpose else values
    x = np.random.default_rng(1).standard_normal((n_rows, dense.shape[0])).astype(np.float32)

    def product(x):
        options = {"transpose": transpose, "mode": mode, "force_fused": True}
        return mto.quantized_matmul(x, w, **options, stream=backend.device)

    exact = x.astype(np.float64) @ dense
    y = np.array(product(mx.array(x)))
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    d_x = np.array(mx.grad(lambda x: product(x).sum())(mx.array(x)))
    np.testing.assert_allclose(d_x, np.ones((n_rows, 1)) * dense.sum(1), rtol=1e-4, atol=1e-4)


def test_two_formats_side_by_side(backend):
    """Another decode of the same bytes is another format."""
    names = [next(NAMES) for _ in range(2)]
    for name, sign in zip(names, "+-", strict=True):
        snippet = f"return {sign}1.0f * codes[i];"
        fields = [("codes", "uint8", 32)]
        mto.register_format(name, 32, fields, decode_cpp=snippet, decode_metal=snippet)
    w = mx.array(np.arange(64, dtype=np.uint8).reshape(2, 32))
    plus, minus = (mto.dequantize(w, mode=name, stream=backend.device) for name in names)
    assert mx.array_equal(plus, w.astype(mx.float32)) and mx.array_equal(minus, -plus)


def test_every_type_of_field(backend):
    fields = [("f", "float32", 1), ("b", "bfloat16", 2), ("h", "float16", 1), ("s", "int16", 1)]
    fields += [("u", "uint16", 2), ("c", "int8", 3), ("codes", "uint8", 32)]
    snippet = "return f + b[1] + h + float(s) + float(u[1]) + float(c[2]) + float(codes[i]);"
    name = next(NAMES)
    mto.register_format(name, 32, fields, decode_cpp=snippet, decode_metal=snippet)
    layout = np.dtype(
        [("f", "<f4"), ("b", "<u2", 2), ("h", "<f2"), ("s", "<i2"), ("u", "<u2", 2)]
        + [("c", "i1", 3), ("codes", "u1", 32)]
    )
    block = np.zeros(1, layout)
    block["f"], block["h"], block["s"] = 0.5, -0.25, -300
    block["b"], block["u"], block["c"] = (0, 0x3FC0), (0, 40000), (0, 0, -7)
    block["codes"] = np.arange(32) * 8
    expected = 0.5 + 1.5 - 0.25 - 300 + 40000 - 7 + np.arange(32) * 8
    w = mx.array(block.view(np.uint8)[None])
    y = mto.dequantize(w, mode=name, stream=backend.device)
    np.testing.assert_array_equal(np.array(y)[0], expected)


def test_it_is_listed(mode):
    info = mto.formats()[mode]
    assert (info.block, info.block_bytes, info.dtype, info.scales) == (32, 38, "uint8", "inside")
    assert info.ops["dequantize"] == info.ops["quantized_matmul"] == ("cpu", "metal")
    assert "quantize" not in info.ops


def test_a_backend_without_a_snippet():
    name = next(NAMES)
    mto.register_format(name, 32, [("c", "uint8", 32)], decode_metal="return float(c[i]);")
    assert mto.formats()[name].ops["dequantize"] == ("metal",)
    with pytest.raises(ValueError, match=name):
        mto.dequantize(mx.zeros((2, 32), mx.uint8), mode=name, stream=CPU)


@pytest.mark.skipif(sys.platform != "linux", reason=ELSEWHERE)
def test_verification_compares_the_snippets():
    """A wrong one is found; one alone is taken as it is."""
    right, wrong, alone = (next(NAMES) for _ in range(3))
    fields, cpp = [("c", "uint8", 32)], "return float(c[i]);"
    mto.register_format(right, 32, fields, decode_cpp=cpp, decode_metal=cpp)
    mto.register_format(wrong, 32, fields, decode_cpp=cpp, decode_metal="return c[i] + 1.0f;")
    mto.register_format(alone, 32, fields, decode_metal=cpp)
    w = mx.array(np.arange(64, dtype=np.uint8).reshape(2, 32))
    with emulated_metal(verify=True):
        for name in (right, alone):
            y = mto.dequantize(w, mode=name, force_fused=True, stream=CPU)
            assert mx.array_equal(y, w.astype(mx.float32))
            y = mto.quantized_matmul(mx.ones((1, 32)), w, mode=name, stream=CPU)
            assert y.tolist() == [[sum(range(32)), sum(range(32, 64))]]
        with pytest.warns(KernelWarning), pytest.raises(ValueError, match="values are wrong"):
            mto.dequantize(w, mode=wrong, force_fused=True, stream=CPU)


def test_the_example_of_the_documentation():
    examples = doctest.DocTestParser().get_examples(mto.register_format.__doc__)
    assert len(examples) > 3
    scope = {"mto": mto, "mx": mx}
    for example in examples:
        exec(example.source, scope)
    assert scope["y"].shape == (4, 64)
    # Scale 1, codes 0: the lowest level everywhere.
    block = np.array([1.0], "<f2").tobytes() + bytes(8)
    w = mx.array(np.frombuffer(block, np.uint8)[None])
    assert mto.dequantize(w, mode="fours", stream=CPU).tolist() == [[-1.5] * 32]


def test_the_example_of_the_readme():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = (
        b for b in re.findall(r"```python\n(.*?)```", text, re.S) if "register_format" in b
    )
    exec(example, {"mto": mto, "mx": mx})
    assert mto.formats()["four_levels"].block_bytes == 10


GOOD = {"decode_cpp": "return 0.0f;"}


@pytest.mark.parametrize(
    ("name", "block", "fields", "snippets", "message"),
    [
        ("a b", 32, [("c", "uint8", 4)], GOOD, "name must be letters, digits and underscores"),
        ("mxfp4", 32, [("c", "uint8", 4)], GOOD, "name must be new, got"),
        ("odd", 33, [("c", "uint8", 4)], GOOD, "block_size must be a multiple of 32 up to 256"),
        ("huge", 512, [("c", "uint8", 4)], GOOD, "block_size must be a multiple of 32 up to 256"),
        ("none", 32, [], GOOD, "fields must have at least one byte, got 0"),
        (
            "kind",
            32,
            [("c", "uint4", 4)],
            GOOD,
            r"fields must be \(name, type, count\) with",
        ),
        ("pair", 32, [("c", "uint8")], GOOD, r"fields must be \(name, type, count\) with"),
        ("zero", 32, [("c", "uint8", 0)], GOOD, "counts of fields must be positive, got 0"),
        ("word", 32, [("c d", "uint8", 4)], GOOD, "names of fields must be identifiers"),
        ("i", 32, [("i", "uint8", 4)], GOOD, "names of fields must be identifiers other than i"),
        ("twice", 32, [("c", "uint8", 4)] * 2, GOOD, "names of fields must differ, got c, c"),
        ("nothing", 32, [("c", "uint8", 4)], {}, "decode_cpp or decode_metal must be given"),
        ("cuda", 32, [("c", "uint8", 4)], {"decode_cuda": ""}, "decode_cuda must be None, got"),
        ("broken", 32, [("c", "uint8", 4)], {"decode_cpp": "return d;"}, "decode_cpp must compile"),
    ],
)
def test_bad_input(name, block, fields, snippets, message):
    with pytest.raises(ValueError, match=rf"^\[register_format\] {message}"):
        mto.register_format(name, block, fields, **snippets)


def test_the_compilers_message_names_the_snippets_line():
    with pytest.raises(ValueError, match=r"decode_cpp:2:\d+: error: "):
        mto.register_format(
            "broken", 32, [("c", "uint8", 4)], decode_cpp="int a = c[0];\nreturn b;"
        )


def test_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(user_format.shutil, "which", lambda name: None)
    monkeypatch.setattr(user_format.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"^\[register_format\] a C\+\+ compiler must be"):
        mto.register_format(next(NAMES), 32, [("c", "uint8", 4)], **GOOD)


def test_with_the_compiler_of_ziglang(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(user_format.shutil, "which", lambda name: None)
    name = next(NAMES)
    mto.register_format(name, 32, [("c", "uint8", 32)], decode_cpp="return float(c[i]) * 0.5f;")
    w = mx.array(np.arange(32, dtype=np.uint8)[None])
    assert mto.dequantize(w, mode=name, stream=CPU)[0, 31].item() == 15.5
