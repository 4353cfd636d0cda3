// A few groups at a time: extremes, scales and biases, packed codes; float32 throughout. Scales and
// biases are rounded once to the type of w when they are stored.

#include "ops/quantize/quantize_kernels.h"

#include <algorithm>

#include "formats/affine_encode.h"
#include "formats/affine_simd.h"

namespace mto::MTO_ISA {
namespace {

constexpr int kMaxGroupSize = 256;
constexpr int kBatch = 16;  // groups whose scales are computed together

inline void prefetch(const char* p, int64_t n_bytes) {
  for (int64_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(p + i);
}

template <int Bits>
MTO_FLAT void batch(const QuantizeParams& p, int64_t begin, int n) {
  float converted[kBatch * kMaxGroupSize];
  float lows[kBatch], highs[kBatch], scales[kBatch] = {}, biases[kBatch] = {};
  int64_t first = begin * p.group_size;
  const float* values = converted;
  if (p.type == FloatType::kFloat32) {
    values = static_cast<const float*>(p.w) + first;
  } else {
    convert_to_float(p.type, p.w, first, n * p.group_size, converted);
  }
  for (int g = 0; g < n; ++g) {
    affine_extremes<Bits>(values + g * p.group_size, p.group_size, lows[g], highs[g]);
  }
  affine_scales<Bits>(lows, highs, n, scales, biases);
  convert_from_float(p.type, scales, n, p.scales, begin);
  convert_from_float(p.type, biases, n, p.biases, begin);
  uint8_t* w_q = p.w_q + affine_row_bytes(first, Bits);
  // While a batch is encoded its successor comes from memory, which the processor does not foresee:
  // a batch can fill a page, and it looks no further. Past the end of w this does nothing.
  int64_t group_bytes = p.group_size * static_cast<int64_t>(size_of(p.type));
  auto next = static_cast<const char*>(p.w) + (begin + n) * group_bytes;
  // Two groups are a block: rows are whole blocks.
  for (int g = 0; p.group_size < kBlock && g < n; g += 2, w_q += block_bytes(Bits)) {
    affine_encode_halves<Bits>(values + g * p.group_size, scales + g, biases + g, w_q);
  }
  if (p.group_size < kBlock) return;
  for (int g = 0; g < n; ++g, w_q += affine_row_bytes(p.group_size, Bits)) {
    prefetch(next + g * group_bytes, group_bytes);
    affine_encode<Bits>(values + g * p.group_size, p.group_size, scales[g], biases[g], w_q);
  }
}

void groups(const QuantizeParams& p, int64_t begin, int64_t end) {
  dispatch_affine_bits(p.bits, [&]<int Bits>() {
    for (int64_t g = begin; g < end; g += kBatch) {
      batch<Bits>(p, g, static_cast<int>(std::min<int64_t>(kBatch, end - g)));
    }
  });
}

}  // namespace

extern const QuantizeKernels quantize_kernels;
const QuantizeKernels quantize_kernels{groups};

}  // namespace mto::MTO_ISA
