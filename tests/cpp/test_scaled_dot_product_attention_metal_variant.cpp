// Which Metal kernel makes attention's forward pass: what has to hold for every shape, and the
// choices themselves.

#include "harness.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_variant.h"

using mto::attention_metal_variant;
using Variant = mto::AttentionMetalVariant;
using test::check;

namespace {

constexpr int kMaxHeadDim = 576;

void every_dimension() {
  for (int64_t d_v = 0; d_v <= kMaxHeadDim; ++d_v) {
    for (int64_t d : {int64_t{0}, int64_t{64}, d_v, int64_t{kMaxHeadDim}}) {
      for (int64_t item : {2, 4}) {
        auto variant = attention_metal_variant(1000, d, d_v, item);
        auto what = std::to_string(d) + " and " + std::to_string(d_v) + " dimensions";
        check(int64_t{variant.width} * variant.splits >= d_v, what + " have all columns");
        check(int64_t{variant.width} * (variant.splits - 1) < std::max<int64_t>(d_v, 1),
              what + " have no idle simdgroup");
        check(mto::attention_registers(variant.rows, variant.keys, variant.width) <=
                  mto::kAttentionRegisters,
              what + " fit into registers");
        bool wide = variant.kind == Variant::kWide;
        check(wide == (variant.splits > 1), what + " are wide where rows are shared");
        int64_t memory = wide ? mto::attention_wide_memory(variant.splits) : 0;
        if (variant.share_q) memory += variant.rows * d * item;
        check(memory <= mto::kThreadgroupMemory, what + " fit into threadgroup memory");
        check(variant.splits * 32 <= 1024, what + " fit into a threadgroup");
      }
    }
  }
}

void choices() {
  struct Choice {
    int64_t n_keys, d, d_v, item;
    Variant variant;
  };
  const Choice choices[] = {
      {4096, 64, 64, 2, {Variant::kRows, 16, 32, 64, true, false, 1}},
      {4096, 80, 80, 2, {Variant::kRows, 16, 32, 96, true, false, 1}},
      {4096, 128, 128, 4, {Variant::kRows, 16, 32, 128, true, false, 1}},
      {4096, 192, 128, 2, {Variant::kRows, 16, 32, 128, true, false, 1}},
      {32, 128, 128, 2, {Variant::kRows, 16, 32, 128, true, false, 1}},
      {31, 128, 128, 2, {Variant::kRows, 16, 32, 128, false, false, 1}},
      {4096, 129, 129, 2, {Variant::kWide, 16, 32, 96, false, true, 2}},
      {4096, 256, 256, 4, {Variant::kWide, 16, 32, 128, false, true, 2}},
      {4096, 576, 512, 2, {Variant::kWide, 16, 32, 128, false, true, 4}},
      {4096, 576, 512, 4, {Variant::kWide, 16, 32, 128, false, false, 4}},
      {31, 576, 576, 2, {Variant::kWide, 16, 32, 128, false, true, 5}},
  };
  for (const auto& [n_keys, d, d_v, item, variant] : choices) {
    check(attention_metal_variant(n_keys, d, d_v, item) == variant,
          std::to_string(d) + " and " + std::to_string(d_v) + " dimensions, " +
              std::to_string(n_keys) + " keys");
  }
}

}  // namespace

int main() {
  every_dimension();
  choices();
  return test::finish("variants of attention's forward pass in Metal");
}
