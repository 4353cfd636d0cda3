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

// Rows of the inner kernels: their sums, kRows x 4, and the operands fill the registers.
constexpr int kRows = kRegisters == 32 ? 6 : kRegisters == 16 ? 3 : 1;
constexpr int kFewRows = kRegisters == 32 ? 4 : kRegisters == 16 ? 2 : 1;

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
