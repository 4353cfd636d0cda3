// Which Metal kernel a product gets: what has to hold for every shape, and the choices themselves.

#include "harness.h"
#include "ops/quantized_matmul/quantized_matmul_metal_variant.h"

using mto::quantized_matmul_variant;
using Variant = mto::QuantizedMatmulVariant;
using test::check;

namespace {

constexpr Variant kTall{Variant::kTiles, 64, 32}, kWide{Variant::kTiles, 32, 64};

void few_rows(bool transpose) {
  for (int64_t m = 1; m <= 32; ++m) {
    auto variant = quantized_matmul_variant(m, 4096, 4096, transpose);
    std::string what = std::to_string(m) + " rows";
    check(variant.kind == Variant::kFewRows, what + " are few");
    check(variant.rows >= m, what + " are read for at once");
    check(variant.rows <= std::max<int64_t>(2 * m - 2, 2), what + " waste less than half");
    check(variant.rows * variant.cols <= 64, what + " fit into registers");
  }
}

void many_rows() {
  struct Choice {
    int64_t m;
    Variant variant;
  };
  const Choice choices[] = {{33, kTall},  {64, kTall},  {65, kWide},  {96, kWide},  {97, kTall},
                            {128, kTall}, {129, kTall}, {512, kTall}, {4096, kTall}};
  for (const auto& [m, variant] : choices) {
    for (bool transpose : {true, false}) {
      auto chosen = quantized_matmul_variant(m, 64, 64, transpose);
      check(chosen == variant, std::to_string(m) + " rows");
    }
  }
}

// A tile of such a matrix has offsets of more than 32 bits.
void vast_columns() {
  const int64_t limit = mto::kMetalTileColsMax;
  check(64 * (limit + 1) >= (int64_t{1} << 31) && 64 * limit < (int64_t{1} << 31), "limit");
  check(quantized_matmul_variant(100, 64, limit, true) == kTall, "the last k of tiles");
  for (bool transpose : {true, false}) {
    const Variant expected{Variant::kFewRows, 32, 2};
    check(quantized_matmul_variant(100, 64, limit + 1, transpose) == expected, "a vast k");
    check(quantized_matmul_variant(100, limit + 1, 64, transpose) == expected, "a vast n");
  }
}

}  // namespace

int main() {
  few_rows(true);
  few_rows(false);
  many_rows();
  vast_columns();
  return test::finish("variants of quantized_matmul in Metal");
}
