#pragma once

// What both orientations of the product kernels share.

#include <algorithm>

#include "cpu/thread_pool.h"
#include "formats/affine_simd.h"
#include "ops/quantized_matmul/quantized_matmul_kernels.h"
#include "ops/quantized_matmul/quantized_matmul_tiles.h"

namespace mto::MTO_ISA {
namespace {

using Params = QuantizedMatmulParams;

// Rows of the inner kernels: kRows x 4 sums, and the operands, fill the registers (32, or 16 on
// AVX2).
constexpr int kRows = kLanes == 8 ? 3 : 6;
constexpr int kFewRows = kLanes == 8 ? 2 : 4;

// Calls f(Index<rows>) with rows = min(n, Max), a compile-time value.
template <int Max, typename F>
inline void with_rows(int64_t n, F&& f) {
  if constexpr (Max > 1) {
    if (n < Max) return with_rows<Max - 1>(n, f);
  }
  f(Index<Max>{});
}

}  // namespace
}  // namespace mto::MTO_ISA
