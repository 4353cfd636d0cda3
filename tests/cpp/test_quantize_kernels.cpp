// Quantize and dequantize of every instruction set: the same bits as the scalar kernels, at the end
// of a page; a round trip stays within half a step.

#include <vector>

#include "formats/affine.h"
#include "harness.h"
#include "ops/dequantize/dequantize_kernels.h"
#include "ops/quantize/quantize_kernels.h"

using namespace mto;
using test::check;

namespace {

constexpr int64_t kGroups = 13;

struct Quantized {
  Quantized(FloatType type, int bits, int group_size)
      : w_q(affine_row_bytes(kGroups * group_size, bits)),
        scales(kGroups * size_of(type)),
        biases(kGroups * size_of(type)) {}
  bool operator==(const Quantized& o) const {
    auto equal = [](const test::Guarded& a, const test::Guarded& b) {
      return std::memcmp(a.data(), b.data(), a.n_bytes()) == 0 && a.intact();
    };
    return equal(w_q, o.w_q) && equal(scales, o.scales) && equal(biases, o.biases);
  }
  test::Guarded w_q, scales, biases;
};

void quantize(Isa isa, const test::Guarded& w, FloatType type, int bits, int group_size,
              Quantized& out) {
  QuantizeParams params{
      w.data(),  out.w_q.data<uint8_t>(), out.scales.data(), out.biases.data(), type, kGroups, bits,
      group_size};
  quantize_kernels(isa).groups(params, 0, 5);
  quantize_kernels(isa).groups(params, 5, kGroups);
}

void test_case(Isa isa, FloatType type, FloatType out_type, int bits, int group_size) {
  auto name = std::string(isa_name(isa)) + " " + test::name_of(type) + " to " +
              test::name_of(out_type) + " bits " + std::to_string(bits) + " group " +
              std::to_string(group_size);
  int64_t n = kGroups * group_size;
  test::Guarded w(n * size_of(type));
  test::fill_exact(w, type, -3, 2);
  std::memset(w.data(), 0, group_size * size_of(type));  // one group of zeros
  Quantized scalar(type, bits, group_size), own(type, bits, group_size);
  quantize(Isa::kScalar, w, type, bits, group_size, scalar);
  quantize(isa, w, type, bits, group_size, own);
  check(own == scalar, name + " quantize");

  test::Guarded expected(n * size_of(out_type)), out(n * size_of(out_type));
  DequantizeParams params{own.w_q.data<uint8_t>(),
                          own.scales.data(),
                          own.biases.data(),
                          expected.data(),
                          type,
                          type,
                          out_type,
                          1,
                          n,
                          bits,
                          group_size};
  dequantize_kernels(Isa::kScalar).groups(params, 0, kGroups);
  params.out = out.data();
  dequantize_kernels(isa).groups(params, 0, 4);
  dequantize_kernels(isa).groups(params, 4, kGroups);
  check(std::memcmp(expected.data(), out.data(), out.n_bytes()) == 0 && out.intact(),
        name + " dequantize");
  for (int64_t i = 0; i < n; ++i) {
    double step = std::fabs(test::read(type, own.scales.data(), i / group_size));
    double edge = std::fabs(test::read(type, own.biases.data(), i / group_size));
    double error = std::fabs(test::read(out_type, out.data(), i) - test::read(type, w.data(), i));
    // A step over-runs the far extreme by up to half a step; halves round scale, bias and value.
    check(error <= 1.01 * step + 0.02 * (edge + step),
          name + " round trip at " + std::to_string(i));
  }
}

}  // namespace

int main() {
  constexpr FloatType kTypes[] = {FloatType::kFloat32, FloatType::kFloat16, FloatType::kBFloat16};
  for (Isa isa : available_isas()) {
    for (int bits : kAffineBits) {
      for (int group_size : kAffineGroupSizes) {
        for (auto type : kTypes) {
          for (auto out_type : kTypes) test_case(isa, type, out_type, bits, group_size);
        }
      }
    }
  }
  return test::finish("quantize kernels");
}
