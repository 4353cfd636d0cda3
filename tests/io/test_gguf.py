"""Reading the GGUF container: what a file may hold, and the ways in which it may be broken."""

import struct

import gguf
import numpy as np
import pytest
from tiny_gguf import METADATA, SHAPES, write_gguf

from mlx_tensorops.io import gguf as ours


@pytest.fixture
def tiny(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf")


def header(version=3, n_tensors=0, n_pairs=0):
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs)


def string(text):
    return struct.pack("<Q", len(text)) + text


def row(name, shape, kind, offset):
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dimensions + struct.pack("<IQ", kind, offset)


def open_bytes(tmp_path, content):
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    with ours.open_gguf(path) as file:
        return file


def test_metadata_and_tensor_table_are_those_written(tiny):
    with ours.open_gguf(tiny) as file:
        assert file.metadata["general.architecture"] == "llama"
        for key, value in METADATA.items():
            stored = np.float32(value) if isinstance(value, float) else value
            assert file.metadata[key] == stored, key
        assert {n: t.shape for n, t in file.tensors.items()} == {
            f"{name}.weight": shape for name, shape in SHAPES.items()
        }
        for tensor in gguf.GGUFReader(tiny).tensors:
            assert file.raw(tensor.name) == tensor.data.tobytes(), tensor.name
            assert file.tensors[tensor.name].type == tensor.tensor_type.name


def test_every_metadata_type_is_read(tmp_path):
    values = {0: 200, 1: -3, 2: 60000, 3: -30000, 4: 1 << 31, 5: -(1 << 31), 6: 0.5, 7: True}
    values |= {10: 1 << 63, 11: -(1 << 63), 12: 0.1}
    content = header(n_pairs=2 * len(values) + 1)
    for kind, value in values.items():
        packed = struct.pack("<" + "BbHhIif?..Qqd"[kind], value)
        content += string(b"one%d" % kind) + struct.pack("<I", kind) + packed
        content += string(b"two%d" % kind) + struct.pack("<IIQ", 9, kind, 2) + packed * 2
    content += string(b"text") + struct.pack("<I", 8) + string("\u00e9".encode())
    read = open_bytes(tmp_path, content).metadata
    assert read.pop("text") == "\u00e9"
    for kind, value in values.items():
        assert read.pop(f"one{kind}") == value
        assert read.pop(f"two{kind}") == [value, value]
    assert not read


@pytest.mark.parametrize("alignment", [1, 32, 64, 4096])
def test_alignment_is_respected(tmp_path, alignment):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(alignment)
    arrays = {name: np.arange(n, dtype=np.float32) for name, n in (("a", 5), ("b", 3))}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with ours.open_gguf(tmp_path / "a.gguf") as file:
        for name, array in arrays.items():
            assert file.raw(name) == array.tobytes()


def test_the_type_table_agrees_with_the_gguf_package():
    for kind, (name, block) in ours._TYPES.items():
        theirs = gguf.GGMLQuantizationType(kind)
        assert name == theirs.name
        if block:
            assert block == gguf.GGML_QUANT_SIZES[theirs]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "path must name a GGUF file"),
        (b"\x80\x04 not it", "path must name a GGUF file"),
        (b"GGUF", "ends inside its header, after 4 bytes"),
        (header(version=1), "version must be 2 or 3, got 1."),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), r"got 50331648 \(a big-endian file\)"),
        (header(n_pairs=1), "ends inside its header"),
        (header(n_tensors=1 << 60), "ends inside its header"),
        (header(n_pairs=1) + struct.pack("<Q", 1 << 62), "ends inside its header"),
        (header(n_pairs=1) + string(b"k") + struct.pack("<I", 77), "types must be 0 to 12, got 77"),
        (header(n_pairs=1) + string(b"\xff") + b"\0" * 5, "strings must be UTF-8"),
        (
            header(n_pairs=1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1),
            "arrays must hold numbers or strings, got elements of type 9",
        ),
        (
            header(n_pairs=1) + string(b"k") + struct.pack("<IIQ", 9, 0, 1 << 62),
            "ends inside its header",
        ),
        (
            header(n_pairs=1) + string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 62),
            "ends inside its header",
        ),
        (
            header(n_pairs=2) + 2 * (string(b"k") + struct.pack("<IB", 0, 1)),
            "keys must be unique, got 'k' twice",
        ),
        (
            header(n_pairs=1) + string(b"general.alignment") + struct.pack("<II", 4, 0),
            "general.alignment must be a positive integer, got 0",
        ),
        (
            header(n_tensors=1) + row(b"t", (1, 1, 1, 1, 1), 0, 0),
            "at most 4 dimensions, got 5 for 't'",
        ),
        (
            header(n_tensors=1) + row(b"t", (256, 1), 22, 0) + bytes(300),
            "must be one of F32, .*, Q6_K, IQ4_NL, BF16, TQ1_0, TQ2_0, got IQ2_S for 't'",
        ),
        (header(n_tensors=1) + row(b"t", (4,), 99, 0), "got number 99 for 't'"),
        (header(n_tensors=1) + row(b"t", (48,), 3, 0), "must be a multiple of 32, got 48 for 't'"),
        (header(n_tensors=1) + row(b"t", (64,), 0, 1 << 60) + bytes(512), "file must be complete"),
        (header(n_tensors=1) + row(b"t", (1 << 60, 1 << 60), 0, 0), "file must be complete"),
        (
            header(n_tensors=2) + 2 * row(b"t", (1,), 0, 0) + bytes(64),
            "names must be unique, got 't' twice",
        ),
    ],
)
def test_broken_files_are_refused(tmp_path, content, message):
    with pytest.raises(ValueError, match=rf"^\[gguf\] .*{message}"):
        open_bytes(tmp_path, content)


def test_a_file_cut_anywhere_is_refused(tmp_path, tiny):
    content = tiny.read_bytes()
    with ours.open_gguf(tiny) as file:
        last = max(tensor.start + tensor.n_bytes for tensor in file.tensors.values())
    cuts = {*range(4, last, 997), *range(4, 200), last - 1}
    for n_bytes in sorted(cuts):
        with pytest.raises(ValueError, match="file must be complete"):
            open_bytes(tmp_path, content[:n_bytes])
    assert open_bytes(tmp_path, content[:last]).tensors


def test_random_damage_is_read_or_refused_with_a_value_error(tmp_path, tiny):
    content = tiny.read_bytes()
    rng = np.random.default_rng(7)
    for _ in range(400):
        damaged = bytearray(content)
        for position in rng.integers(4, 9000, 4):
            damaged[position] = rng.integers(256)
        try:
            open_bytes(tmp_path, bytes(damaged))
        except ValueError as error:
            assert str(error).startswith("[gguf] ")
