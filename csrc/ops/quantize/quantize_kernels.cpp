// One group at a time: extremes, scale and bias, codes, packed codes; float32 throughout. Scale and
// bias are rounded once to the type of w when they are stored.

#include "ops/quantize/quantize_kernels.h"

#include "formats/affine_encode.h"

namespace mto::MTO_ISA {
namespace {

constexpr int kMaxGroupSize = 128;

void groups(const QuantizeParams& p, int64_t begin, int64_t end) {
  float values[kMaxGroupSize];
  uint8_t codes[kMaxGroupSize];
  for (int64_t g = begin; g < end; ++g) {
    convert_to_float(p.type, p.w, g * p.group_size, p.group_size, values);
    AffineScale s = affine_scale(values, p.group_size, p.bits);
    affine_encode(values, p.group_size, p.bits, s, codes);
    affine_pack(codes, p.group_size, p.bits, p.w_q + affine_row_bytes(g * p.group_size, p.bits));
    store_one(p.type, p.scales, g, s.scale);
    store_one(p.type, p.biases, g, s.bias);
  }
}

}  // namespace

extern const QuantizeKernels quantize_kernels;
const QuantizeKernels quantize_kernels{groups};

}  // namespace mto::MTO_ISA
