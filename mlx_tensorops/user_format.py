"""Formats of a user's own: a decode snippet from Python, in every op."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mlx_tensorops import _ext

_OP = "[register_format]"

Field = tuple[str, str, int]

# Bytes of an element, and its type in C++ and in Metal.
_TYPES = {
    "uint8": (1, "int"),
    "int8": (1, "int"),
    "uint16": (2, "int"),
    "int16": (2, "int"),
    "float16": (2, "float"),
    "bfloat16": (2, "float"),
    "float32": (4, "float"),
}

# How an element is read from bytes, which need not be aligned.
_READERS_CPP = """
inline unsigned bits_of(const unsigned char* p, int n) {
  unsigned bits = 0;
  for (int i = 0; i < n; ++i) bits |= unsigned(p[i]) << (8 * i);
  return bits;
}
inline float float_of(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int read_uint8(const unsigned char* p) { return *p; }
inline int read_int8(const unsigned char* p) { return static_cast<signed char>(*p); }
inline int read_uint16(const unsigned char* p) { return int(bits_of(p, 2)); }
inline int read_int16(const unsigned char* p) { return static_cast<short>(bits_of(p, 2)); }
inline float read_bfloat16(const unsigned char* p) { return float_of(bits_of(p, 2) << 16); }
inline float read_float32(const unsigned char* p) { return float_of(bits_of(p, 4)); }
inline float read_float16(const unsigned char* p) {
  unsigned half = bits_of(p, 2), sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  float value = magnitude < 0x400u ? float(magnitude) * float_of(103u << 23)
                                   : float_of((magnitude << 13) + (112u << 23));
  return sign ? -value : value;
}
"""

_READERS_METAL = {
    "uint8": "int(block[{at}])",
    "int8": "int(as_type<char>(block[{at}]))",
    "uint16": "int(ushort(block[{at}]) | ushort(block[{at} + 1]) << 8)",
    "int16": "int(as_type<short>(ushort(ushort(block[{at}]) | ushort(block[{at} + 1]) << 8)))",
    "float16": "mto::float16_at(block + {at})",
    "bfloat16": ("as_type<float>(uint(block[{at}]) << 16 | uint(block[{at} + 1]) << 24)"),
    "float32": (
        "as_type<float>(uint(block[{at}]) | uint(block[{at} + 1]) << 8"
        " | uint(block[{at} + 2]) << 16 | uint(block[{at} + 3]) << 24)"
    ),
}

# Code that is loaded stays so: kernels hold its address.
_loaded: list[ctypes.CDLL] = []


def register_format(
    name: str,
    block_size: int,
    fields: Sequence[Field],
    *,
    decode_cpp: str | None = None,
    decode_metal: str | None = None,
    decode_cuda: str | None = None,
) -> None:
    """Add a mode of your own, which ``dequantize`` and ``quantized_matmul`` then take.

    A matrix of the format is uint8 ``(..., N, K / block_size * block_bytes)``: rows of blocks, each
    the bytes of its fields one after the other, little-endian, not padded; scales and biases are
    ``None``. A snippet is the body of a function that returns value ``i`` of a block as a float.
    In it a field of one element is a number (int or float), any other an array to index.

    On a Mac, Metal kernels are compared with the CPU's before they are used, where there is a C++
    snippet too. It is compiled here, by ``$CXX``, a compiler on the path or the one of the package
    ``ziglang``. Snippets run as they are, without a check of what they read.

    Args:
        name: The mode: letters, digits and underscores.
        block_size: Values of a block, a multiple of 32 up to 256.
        fields: ``(name, type, count)`` each, with a type of uint8, int8, uint16, int16, float16,
            bfloat16, float32.
        decode_cpp: For the CPU. Default: ``None``, no CPU kernels.
        decode_metal: For Metal, in its language. Default: ``None``, no Metal kernels.
        decode_cuda: For CUDA. Default: ``None``. No backend of this package takes it yet.

    Raises:
        ValueError: a name that is taken, fields or a block size that do not fit, no snippet, or one
            that does not compile: with the compiler's message.
        RuntimeError: there is no C++ compiler.

    Example:
        >>> levels = "const float levels[4] = {-1.5f, -0.4f, 0.4f, 1.5f};"
        >>> decode = levels + "return scale * levels[codes[i / 4] >> (i % 4 * 2) & 3];"
        >>> fields = [("scale", "float16", 1), ("codes", "uint8", 8)]
        >>> mto.register_format("fours", 32, fields, decode_cpp=decode, decode_metal=decode)
        >>> y = mto.dequantize(mx.zeros((4, 20), mx.uint8), mode="fours")
    """
    block_bytes = _check(name, fields)
    if decode_cuda is not None:
        raise ValueError(f"{_OP} decode_cuda must be None, got one: there are no CUDA kernels yet.")
    if decode_cpp is None and decode_metal is None:
        raise ValueError(f"{_OP} decode_cpp or decode_metal must be given, got neither.")
    # Before the compiler runs: name and sizes are refused by the table.
    address = 0 if decode_cpp is None else _compiled(cpp_source(block_size, fields, decode_cpp))
    metal = "" if decode_metal is None else metal_source(name, block_size, fields, decode_metal)
    _ext.register_format(name, block_size, block_bytes, address, metal)


def _check(name: str, fields: Sequence[Field]) -> int:
    """Check the names and types; return the bytes of a block."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{_OP} name must be letters, digits and underscores, got {name!r}.")
    names = [field[0] for field in fields]
    for field in fields:
        if len(field) != 3 or field[1] not in _TYPES or not isinstance(field[2], int):
            kinds = ", ".join(_TYPES)
            raise ValueError(
                f"{_OP} fields must be (name, type, count) with a type of {kinds}, got {field!r}."
            )
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field[0]) or field[0] in ("i", "block"):
            raise ValueError(
                f"{_OP} names of fields must be identifiers other than i and block, "
                f"got {field[0]!r}."
            )
        if field[2] < 1:
            raise ValueError(f"{_OP} counts of fields must be positive, got {field[2]}.")
    if len(set(names)) != len(names):
        raise ValueError(f"{_OP} names of fields must differ, got {', '.join(names)}.")
    return sum(_TYPES[kind][0] * count for _, kind, count in fields)


def _with_offsets(fields: Sequence[Field]) -> list[tuple[str, str, int, int]]:
    placed, at = [], 0
    for name, kind, count in fields:
        placed.append((name, kind, count, at))
        at += _TYPES[kind][0] * count
    return placed


def cpp_source(block_size: int, fields: Sequence[Field], snippet: str) -> str:
    """Return the C++ text of ``mto_decode_block``, which decodes a block to floats."""
    lines = ["#include <cmath>", "#include <cstring>", "namespace {", _READERS_CPP]
    arguments = []
    for name, kind, count, at in _with_offsets(fields):
        size, result = _TYPES[kind]
        if count > 1:
            lines.append(
                f"struct Field_{name} {{ const unsigned char* p; {result} operator[](int k) const "
                f"{{ return read_{kind}(p + k * {size}); }} }};"
            )
            arguments.append((f"Field_{name} {name}", f"Field_{name}{{block + {at}}}"))
        else:
            arguments.append((f"{result} {name}", f"read_{kind}(block + {at})"))
    parameters = ", ".join([*(p for p, _ in arguments), "int i"])
    values = ", ".join([*(v for _, v in arguments), "i"])
    lines += [
        f"inline float value({parameters}) {{",
        '#line 1 "decode_cpp"',
        snippet,
        "}",
        "}  // namespace",
        '#line 1 "block"',
        'extern "C" void mto_decode_block(const unsigned char* block, float* values) {',
        f"  for (int i = 0; i < {block_size}; ++i) values[i] = value({values});",
        "}",
    ]
    return "\n".join(lines) + "\n"


def metal_source(name: str, block_size: int, fields: Sequence[Field], snippet: str) -> str:
    """Return the Metal text of the format's type, as the kernels' templates take it."""
    placed = _with_offsets(fields)
    block_bytes = sum(_TYPES[kind][0] * count for _, kind, count in fields)
    accessors, declarations = [], []
    for field, kind, count, at in placed:
        size, result = _TYPES[kind]
        if count > 1:
            reader = _READERS_METAL[kind].format(at=f"({at} + k * {size})")
            accessors.append(
                f"  template <typename Bytes> struct Field_{field} {{ Bytes block; "
                f"{result} operator[](int k) const {{ return {reader}; }} }};"
            )
            declarations.append(f"    const Field_{field}<Bytes> {field} = {{block}};")
        else:
            reader = _READERS_METAL[kind].format(at=at)
            declarations.append(f"    const {result} {field} = {reader};")
    lines = [
        "namespace mto {",
        f"struct UserFormat_{name} {{",
        f"  enum {{ kBits = 0, kBlock = {block_size}, kBlockBytes = {block_bytes} }};",
        *accessors,
        "  template <typename Bytes> static ScaleBias parameters(Bytes, int) {",
        "    return scale_alone(1.0f);",
        "  }",
        "  template <typename Bytes> static float code(Bytes block, int i) {",
        *declarations,
        snippet,
        "  }",
        "};",
        "}  // namespace mto",
    ]
    return "\n".join(lines) + "\n"


def _compiled(source: str) -> int:
    """Compile and load; return the address of the decode function."""
    stem = "mto_format_" + hashlib.sha256(source.encode()).hexdigest()[:16]
    with tempfile.TemporaryDirectory(prefix=stem) as folder:
        path, library = Path(folder) / f"{stem}.cpp", Path(folder) / f"{stem}.so"
        path.write_text(source, encoding="utf-8")
        # Contracted products would differ from those of other backends.
        flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC"]
        command = [*_compiler(), *flags, "-o", str(library), str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(
                f"{_OP} decode_cpp must compile, got from {command[0]}:\n{done.stderr.strip()}"
            )
        loaded = ctypes.CDLL(str(library))
    _loaded.append(loaded)
    address = ctypes.cast(loaded.mto_decode_block, ctypes.c_void_p).value
    assert address
    return address


def _compiler() -> list[str]:
    if own := os.environ.get("CXX"):
        return shlex.split(own)
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise RuntimeError(
        f"{_OP} a C++ compiler must be at hand for decode_cpp, got none: set CXX, install g++ or "
        "clang++, or `pip install ziglang`."
    )
