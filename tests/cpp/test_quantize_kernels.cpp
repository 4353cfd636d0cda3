// Quantize and dequantize of every instruction set: the same bits as the scalar kernels, at the end
// of a page; a round trip stays within half a step. Quantize also against the rule, value by value.

#include <vector>

#include "formats/affine.h"
#include "harness.h"
#include "ops/dequantize/dequantize_kernels.h"
#include "ops/quantize/quantize_kernels.h"

using namespace mto;
using test::check;

namespace {

constexpr int64_t kGroups = 37;

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

// Groups that reach the corners of the rule, by turns.
float corner_value(int64_t group, int64_t i) {
  float noise = test::uniform(-1, 1);
  bool rare = test::rng()() % 16 == 0;
  switch (group % 12) {
    case 0:
      return rare ? NAN : noise;
    case 1:
      return NAN;
    case 2:
      return rare ? INFINITY : noise;
    case 3:
      return rare ? -INFINITY : -1.0f;
    case 4:
      return INFINITY;
    case 5:
      return std::fabs(noise) < 0.5f ? std::copysign(0.0f, noise) : std::fabs(noise);
    case 6:
      return std::copysign(0.0f, i == 0 ? -1.0f : noise);
    case 7:
      return std::round(noise * 8) / 16;
    case 8:
      return noise * 1e-40f;
    case 9:
      return noise * 3.4e38f;
    case 10:
      return noise * std::ldexp(1e-7f, static_cast<int>(group / 12));
    default:
      return 1000.0f + noise;
  }
}

struct Rule {
  float scale, bias;
  std::vector<uint32_t> codes;
};

Rule by_the_rule(const float* values, int group_size, int bits) {
  float low = INFINITY, high = -INFINITY, n = static_cast<float>((1 << bits) - 1);
  for (int i = 0; i < group_size; ++i) {
    if (high < values[i]) high = values[i];
    if (values[i] < low) low = values[i];
  }
  Rule rule{(high - low) / n, low, {}};
  if (rule.scale < 1e-7f) rule.scale = 1e-7f;
  if (bits > 1) {
    bool negative = std::fabs(low) > std::fabs(high);
    rule.bias = negative ? low : high;
    if (!negative) rule.scale = -rule.scale;
    float edge_code = std::nearbyint(rule.bias / rule.scale);
    if (edge_code == 0.0f) {
      rule.bias = 0.0f;
    } else {
      rule.scale = rule.bias / edge_code;
    }
  }
  for (int i = 0; i < group_size; ++i) {
    float code = std::nearbyint((values[i] - rule.bias) / rule.scale);
    rule.codes.push_back(code > 0.0f ? static_cast<uint32_t>(code < n ? code : n) : 0);
  }
  return rule;
}

// Which NaN is not part of the rule.
bool same(float a, float b) {
  return std::isnan(b) ? std::isnan(a) : std::memcmp(&a, &b, sizeof(a)) == 0;
}

void test_rule(Isa isa, int bits, int group_size) {
  auto name = std::string(isa_name(isa)) + " bits " + std::to_string(bits) + " group size " +
              std::to_string(group_size) + " group ";
  test::Guarded w(kGroups * group_size * sizeof(float));
  for (int64_t i = 0; i < kGroups * group_size; ++i) {
    w.data<float>()[i] = corner_value(i / group_size, i % group_size);
  }
  Quantized own(FloatType::kFloat32, bits, group_size);
  quantize(isa, w, FloatType::kFloat32, bits, group_size, own);
  for (int64_t g = 0; g < kGroups; ++g) {
    Rule rule = by_the_rule(w.data<float>() + g * group_size, group_size, bits);
    check(same(own.scales.data<float>()[g], rule.scale), name + std::to_string(g) + " scale");
    check(same(own.biases.data<float>()[g], rule.bias), name + std::to_string(g) + " bias");
    for (int i = 0; i < group_size; ++i) {
      check(test::code_at(own.w_q.data<uint8_t>(), g * group_size + i, bits) == rule.codes[i],
            name + std::to_string(g) + " code " + std::to_string(i));
    }
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
        test_rule(isa, bits, group_size);
      }
    }
  }
  return test::finish("quantize kernels");
}
