#include <algorithm>
#include <cmath>

#include "common/integers.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_trial_values.h"

namespace mto {
namespace {

using enum AttentionInput;

// So many rows walked over are one step or less, where simdgroups work another way.
constexpr int kStep = 32;
// Of float32 without tf32, one in so many columns of v needs 12 significant bits.
constexpr int kLongValues = 32;

int trial_length(int own, metal::TrialSize size, int small, int large) {
  if (own < kStep) return std::max(own, 1);
  return size == metal::TrialSize::kSmall ? small : large;
}

mx::array whole(int low, int high, const mx::Shape& shape, mx::Dtype dtype, uint64_t seed) {
  return metal::trial_integers(low, high, shape, dtype, seed);
}

// A few elements are `value`, others 0: the rows of two such matrices have nothing in common in
// about half of all pairs.
mx::array sparse(int value, const mx::Shape& shape, mx::Dtype dtype, uint64_t seed) {
  constexpr int kUnit = 1000;
  auto s = metal::trial_stream();
  double rate = std::sqrt(0.7 / std::max(shape.back(), 1));
  auto limit = mx::array(static_cast<int>(rate * kUnit));
  auto chosen = mx::less(whole(0, kUnit - 1, shape, mx::int32, seed), limit, s);
  return mx::where(chosen, mx::array(value, dtype), mx::array(0, dtype), s);
}

mx::array with_long_values(const mx::array& v) {
  auto s = metal::trial_stream();
  auto column = mx::arange(0, v.shape(-1), 1, mx::int32, s);
  auto at = mx::remainder(column, mx::array(kLongValues), s);
  auto longer = mx::add(mx::multiply(v, mx::array(2048.0f), s), mx::array(1.0f), s);
  return mx::where(mx::equal(at, mx::array(0), s), longer, v, s);
}

}  // namespace

std::shared_ptr<mx::Primitive> ScaledDotProductAttentionVJP::on(mx::Stream stream) const {
  return std::make_shared<ScaledDotProductAttentionVJP>(stream, exact_settings(settings_),
                                                        wants_mask_, wants_alibi_);
}

// Few heads, and one batch element: kernels do not depend on their number.
std::vector<metal::TrialShapes> ScaledDotProductAttentionVJP::trial_shapes(
    const std::vector<mx::array>& inputs, metal::TrialSize size) const {
  const auto &q = inputs[0], &k = inputs[1], &v = inputs[2];
  int n_q = trial_length(q.shape(-2), size, 45, 600),
      n_k = trial_length(k.shape(-2), size, 77, 1024);
  int n_kv_heads = std::min(k.shape(-3), 2), n_heads = n_kv_heads;
  if (k.shape(-3) > 0) n_heads *= q.shape(-3) / k.shape(-3);
  metal::TrialShapes shapes{
      {n_heads, n_q, q.shape(-1)}, {n_kv_heads, n_k, k.shape(-1)}, {n_kv_heads, n_k, v.shape(-1)}};
  int blocks_q = ceil_div(n_q, settings_.block_rows),
      blocks_k = ceil_div(n_k, settings_.block_keys);
  auto add = [&](AttentionInput input, mx::Shape sizes) {
    if (!settings_.has(input)) return;
    const auto& own = inputs[settings_.at(input)];
    for (int i = 1; i <= static_cast<int>(sizes.size()); ++i) {
      if (own.shape(-i) == 1) sizes.end()[-i] = 1;
    }
    shapes.push_back(sizes);
  };
  add(kMask, {n_heads, n_q, n_k});
  add(kAlibi, {n_heads});
  add(kSinks, {n_heads});
  add(kQSegments, {n_q});
  add(kKSegments, {n_k});
  for (auto input : {kQDocuments, kKDocuments}) {
    if (settings_.has(input)) shapes.push_back(inputs[settings_.at(input)].shape());
  }
  add(kBlockMask, {n_heads, blocks_q, blocks_k});
  for (int i = 0; i < 2; ++i) {
    shapes.push_back({n_heads, n_q, v.shape(-1)});
    shapes.push_back({n_heads, n_q});
  }
  return {shapes};
}

// Scores are 0, or so far below that exp of them is 0, and lse is 0: weights are 1 or 0. All else
// is whole numbers.
std::vector<mx::array> ScaledDotProductAttentionVJP::trial_inputs(
    const metal::TrialShapes& shapes, const std::vector<mx::array>& inputs) const {
  auto s = metal::trial_stream();
  auto dtype = inputs[0].dtype();
  auto v = whole(-1, 1, shapes[2], dtype, 3);
  // Distances of keys make sums for d_alibi long enough.
  if (dtype == mx::float32 && !settings_.tf32 && !wants_alibi_) v = with_long_values(v);
  std::vector<mx::array> out{sparse(16, shapes[0], dtype, 1), sparse(-16, shapes[1], dtype, 2), v};
  metal::TrialShapes of_forward(shapes.begin(), shapes.begin() + settings_.n_inputs());
  auto options = attention_trial_options(of_forward, inputs, settings_);
  out.insert(out.end(), options.begin(), options.end());
  if (settings_.has(kAlibi)) {
    auto& alibi = out[settings_.at(kAlibi)];
    alibi = mx::zeros_like(alibi, s);
  }
  if (settings_.has(kMask) && out[settings_.at(kMask)].dtype() != mx::bool_) {
    auto& mask = out[settings_.at(kMask)];
    mask = mx::where(mx::isinf(mask, s), mask, mx::zeros_like(mask, s), s);
  }
  size_t n = settings_.n_inputs();
  out.push_back(whole(-1, 1, shapes[n], dtype, 4));
  out.push_back(mx::zeros(shapes[n + 1], mx::float32, s));
  out.push_back(whole(-1, 1, shapes[n + 2], dtype, 5));
  out.push_back(whole(-2, 2, shapes[n + 3], mx::float32, 6));
  return out;
}

}  // namespace mto
