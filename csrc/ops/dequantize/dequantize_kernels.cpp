// out = fma(code, scale, bias) in float32, rounded once more to the output type. A row is a whole
// number of groups, so the groups of all rows follow each other in memory.

#include "ops/dequantize/dequantize_kernels.h"

#include <algorithm>

#include "formats/affine_simd.h"

namespace mto::MTO_ISA {
namespace {

template <int Bits>
void groups(const DequantizeParams& p, int64_t begin, int64_t end) {
  for (int64_t g = begin; g < end; ++g) {
    auto group = AffineGroup<Bits>::make(load_one(p.scales_type, p.scales, g),
                                         load_one(p.biases_type, p.biases, g));
    for (int64_t i = g * p.group_size; i < (g + 1) * p.group_size; i += kBlock) {
      const uint8_t* codes = p.w + affine_row_bytes(i, Bits);
      unroll<kVecsPerBlock>([&](auto v) {
        store_as(p.out_type, p.out, i + v.value * kLanes,
                 affine_decode<Bits, v.value>(codes, group));
      });
    }
  }
}

void all_bits(const DequantizeParams& p, int64_t begin, int64_t end) {
  dispatch_affine_bits(p.bits, [&]<int Bits>() { groups<Bits>(p, begin, end); });
}

void row(const DecodedRow& decoded, int64_t row, int64_t first) {
  constexpr int64_t kValues = 512;
  float values[kValues];
  const auto& m = decoded.matrix;
  for (int64_t col = 0; col < m.n_cols; col += kValues) {
    int64_t n = std::min(kValues, m.n_cols - col);
    decoded.decode(m, row, col, (n + kBlock - 1) / kBlock * kBlock, values, kLanes);
    convert_from_float(decoded.out_type, values, n, decoded.out, first + col);
  }
}

}  // namespace

extern const DequantizeKernels dequantize_kernels;
const DequantizeKernels dequantize_kernels{all_bits, row};

}  // namespace mto::MTO_ISA
