"""Floating literals are float, also where a template's parameters decide."""

import numpy as np
import pytest

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator.rewriter.literals import rewrite_literals
from mlx_tensorops.testing.emulator.rewriter.tokens import Source


@pytest.mark.parametrize("text", ["1.5", ".5", "2.", "1e5", "1.5e-3", "2.E+7", "0x1.8p3", "0x1p-2"])
def test_a_suffix_is_given(text):
    source = Source(f"x = -{text} + y.x;")
    rewrite_literals(source)
    assert source.output() == f"x = -{text}f + y.x;"


@pytest.mark.parametrize("text", ["1", "1u", "0x1f", "0xep", "1.5f", "1.5F", "0b11", "1'000"])
def test_others_stay(text):
    source = Source(f"x = {text};")
    rewrite_literals(source)
    assert source.output() == f"x = {text};"


def test_in_a_template():
    text = """#include <metal_stdlib>
using namespace metal;
template <typename T>
[[kernel]] void k(device float* out, device T* x) {
  static_assert(is_same_v<decltype(0.1 * x[0]), T>);
  vec<T, 2> v = 0.5 * vec<T, 2>(x[0], x[1]);
  out[0] = 0.1 * x[0];
  out[1] = v.x + v.y;
}
"""
    library = emulator.compile(text, instantiations={"k": "k<float>"})
    x, out = np.array([3, 4], np.float32), np.zeros(2, np.float32)
    library.pipeline("k").launch({0: out, 1: x}, (1,))
    assert out.tolist() == [np.float32(0.1) * np.float32(3), 3.5]
