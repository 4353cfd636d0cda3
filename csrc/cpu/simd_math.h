#pragma once

// Functions of vectors, by polynomials fitted at Chebyshev points.

#include <limits>

#include "cpu/simd.h"

namespace mto::MTO_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Lanes 0, 1, 2, ..
MTO_INLINE Vec iota() {
  alignas(64) static constexpr float lanes[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                  8, 9, 10, 11, 12, 13, 14, 15};
  return load(lanes);
}

// e^x for x <= 88, within 2 units in the last place, 1 for 0; below -87 it is 0, not sub-normal.
// NaN stays NaN. x = n ln 2 + r, and e^r = 1 + r + r^2 (1/2 + ..), where ln 2 is taken in two
// parts.
MTO_INLINE Vec exp(Vec x) {
  constexpr float kLowest = -87.0f;
  Vec bounded = max(broadcast(kLowest), x);
  Vec n = nearest(mul(bounded, broadcast(0x1.715476p+0f)));
  Vec r = fma(n, broadcast(-0x1.62e430p-1f), bounded);
  r = fma(n, broadcast(0x1.05c610p-29f), r);
  Vec p = fma(broadcast(0x1.6d4366p-10f), r, broadcast(0x1.120ba6p-7f));
  p = fma(p, r, broadcast(0x1.5554e8p-5f));
  p = fma(p, r, broadcast(0x1.5554dcp-3f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(mul(r, r), p, r);
  p = scaled(add(p, broadcast(1.0f)), n);
  return select(x, broadcast(kLowest), zero(), p);
}

// A polynomial where 1 - 2 / (e^2x + 1) would cancel.
MTO_INLINE Vec tanh(Vec x) {
  Vec size = max(x, sub(zero(), x));
  Vec square = mul(x, x);
  Vec p = fma(broadcast(-0.00610495f), square, broadcast(0.02100364f));
  p = fma(p, square, broadcast(-0.0538525f));
  p = fma(p, square, broadcast(0.13332783f));
  p = fma(p, square, broadcast(-0.33333328f));
  Vec near = fma(mul(p, square), x, x);
  Vec e = exp(mul(size, broadcast(-2.0f)));
  Vec far = div(sub(broadcast(1.0f), e), add(broadcast(1.0f), e));
  far = select(x, zero(), sub(zero(), far), far);
  return select(size, broadcast(0.625f), near, far);
}

}  // namespace
}  // namespace mto::MTO_ISA
