"""Compound assignments to components, in templates above all."""

import numpy as np
import pytest

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator.rewriter.compound import rewrite_compound_assignments
from mlx_tensorops.testing.emulator.rewriter.tokens import Source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v.x += 1;", "v.x = v.x + ( 1);"),
        ("a[i].xy *= f(b, c) - d;", "a[i].xy = a[i].xy * ( f(b, c) - d);"),
        ("s.v[2]\n  .w -= x,\n  y;", "s.v[2]\n  .w = s.v[2].w - ( x),\n  y;"),
        ("p->v.r <<= f<a, b>(c);", "p->v.r = p->v.r << ( f<a, b>(c));"),
        ("for (;; v.y /= 2) {}", "for (;; v.y = v.y / ( 2)) {}"),
        ("v.x += w.y += 1;", "v.x = v.x + ( w.y = w.y + ( 1));"),
        # Not evaluated twice, so left to the compiler; and no components.
        *((text, text) for text in ("a[i++].x += 1;", "f(1).x += 1;", "a[f(1)].x += 1;")),
        *((text, text) for text in ("s.real += 1;", "x += 1;", "s.xyr += 1;")),
    ],
)
def test_rewritten(text, expected):
    source = Source(text)
    rewrite_compound_assignments(source)
    assert source.output() == expected


def test_in_a_template():
    text = """#include <metal_stdlib>
using namespace metal;
struct Other { int value; };
Other operator+=(thread Other& a, Other b) { a.value = a.value + b.value; return a; }
template <typename T, typename I>
[[kernel]] void k(device T* out, uint i [[thread_position_in_grid]]) {
  vec<I, 2> at = {I(i), 1};
  for (int step = 0; step < 3; step++) {
    at.x += step * I(2);
    at.y *= at.x, at.y -= 1;
  }
  out[2 * i] = at.x;
  out[2 * i + 1] = at.y;
}
"""
    library = emulator.compile(text, instantiations={"k": "k<float, long>"})
    out = np.zeros((4, 2), np.float32)
    library.pipeline("k").launch({0: out}, (4,))
    for i in range(4):
        x, y = i, 1
        for step in range(3):
            x += 2 * step
            y = y * x - 1
        assert out[i].tolist() == [x, y]
