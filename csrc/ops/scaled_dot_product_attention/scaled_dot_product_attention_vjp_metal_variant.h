#pragma once

// Which kernel makes the gradients by queries, or by keys and values: a function of the shape
// alone.

#include <algorithm>
#include <cstdint>

#include "common/integers.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_vjp_metal_params.h"

namespace mto {

struct AttentionGradVariant {
  int n_first, n_values;  // columns of d_q or d_k, and of d_v, that a simdgroup has
  int cols;               // rows of a step
  int simdgroups;
  bool together;

  bool operator==(const AttentionGradVariant&) const = default;
};

// Sums take 64 registers a lane at most: with scores and what they are made of some 110, and GPUs
// before M3 have 128.
constexpr int64_t kGradQueryColumns = 128;
constexpr int64_t kGradKeyColumns = 64;  // of d_k, and as many of d_v
// Of simdgroups that take steps of 32 together: what they hand over fills threadgroup memory.
constexpr int kGradWideSteps = 6;

// Owners of `queries`, else of keys, that walk over n_walked rows a head.
inline AttentionGradVariant attention_grad_variant(bool queries, int64_t n_walked, int64_t d,
                                                   int64_t d_v) {
  int64_t simdgroups =
      queries ? ceil_div(d, kGradQueryColumns) : ceil_div(std::max(d, d_v), kGradKeyColumns);
  simdgroups = std::max<int64_t>(simdgroups, 1);
  auto columns = [&](int64_t n) {
    constexpr int64_t kUnit = 16;  // of a tile
    return static_cast<int>(std::max<int64_t>(1, ceil_div(n, simdgroups * kUnit)) * kUnit);
  };
  int cols = simdgroups > kGradWideSteps ? 16 : 32;
  bool together = simdgroups > 1 || n_walked < cols;
  return {columns(d), queries ? columns(0) : columns(d_v), cols,
          together ? static_cast<int>(simdgroups) : kGradApart, together};
}

}  // namespace mto
