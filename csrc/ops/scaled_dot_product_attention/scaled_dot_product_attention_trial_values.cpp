#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_trial_values.h"

#include <algorithm>
#include <limits>

#include "common/integers.h"

namespace mto {
namespace {

using enum AttentionInput;

constexpr AttentionInput kInputs[] = {kMask,      kAlibi,      kSinks,      kQSegments,
                                      kKSegments, kQDocuments, kKDocuments, kBlockMask};

mx::array whole(int low, int high, const mx::Shape& shape, mx::Dtype dtype, uint64_t seed) {
  return metal::trial_integers(low, high, shape, dtype, seed);
}

mx::array gaps(int low, int high, const mx::Shape& shape, mx::Dtype dtype, uint64_t seed) {
  return mx::multiply(whole(low, high, shape, dtype, seed), mx::array(kTrialGap, dtype),
                      metal::trial_stream());
}

// A third are -infinity, or false.
mx::array trial_mask(const mx::Shape& shape, mx::Dtype dtype) {
  auto s = metal::trial_stream();
  auto visible = mx::greater(whole(0, 2, shape, mx::int32, 11), mx::array(0), s);
  if (dtype == mx::bool_) return visible;
  auto hidden = mx::array(-std::numeric_limits<float>::infinity(), dtype);
  return mx::where(visible, gaps(-3, 3, shape, dtype, 12), hidden, s);
}

// Documents of about the same length.
mx::array trial_documents(int n, int length) {
  std::vector<int32_t> ends;
  for (int64_t i = 0; i < n; ++i) {
    ends.push_back(static_cast<int32_t>(i * length / std::max(n - 1, 1)));
  }
  return mx::array(ends.data(), {n}, mx::int32);
}

// Ascending ids.
mx::array trial_segments(const mx::Shape& shape) {
  auto s = metal::trial_stream();
  auto position = mx::arange(0, shape.back(), 1, mx::int32, s);
  auto id = mx::floor_divide(mx::multiply(position, mx::array(3), s), mx::array(shape.back()), s);
  return mx::broadcast_to(id, shape, s);
}

mx::array trial_option(AttentionInput input, const mx::Shape& shape, mx::Dtype dtype, int n_q,
                       int n_k) {
  switch (input) {
    case kMask:
      return trial_mask(shape, dtype);
    case kAlibi:
      return gaps(0, 3, shape, dtype, 13);
    case kSinks:
      return gaps(-3, 3, shape, dtype, 14);
    case kQSegments:
    case kKSegments:
      return trial_segments(shape);
    case kQDocuments:
      return trial_documents(shape[0], n_q);
    case kKDocuments:
      return trial_documents(shape[0], n_k);
    default:
      return trial_mask(shape, mx::bool_);
  }
}

// The own axes of an option for so many keys; 1 stays 1.
mx::Shape option_shape(AttentionInput input, mx::Shape shape, int n_batch_dims, int n_k,
                       const AttentionSettings& settings) {
  bool keys = input == kMask || input == kKSegments || input == kBlockMask;
  if (keys && shape.back() != 1) {
    int64_t block = input == kBlockMask ? settings.block_keys : 1;
    shape.back() = static_cast<int>(ceil_div(n_k, block));
  }
  if (input == kQDocuments || input == kKDocuments) return shape;
  int own = input == kMask || input == kBlockMask ? 3 : 1;
  int n_batch = static_cast<int>(shape.size()) - own;
  for (int axis = 0; axis < std::min(n_batch, n_batch_dims); ++axis) shape[axis] = 1;
  return shape;
}

}  // namespace

AttentionSettings exact_settings(AttentionSettings settings) {
  settings.scale = 1;
  if (settings.softcap > 0) settings.softcap = 0x1p100f;
  return settings;
}

std::vector<metal::TrialShapes> attention_trial_shapes(const std::vector<mx::array>& inputs,
                                                       const AttentionSettings& settings,
                                                       metal::TrialSize size) {
  constexpr int kSmall[] = {20, 45, 700}, kLarge[] = {20, 1024, 4096};
  std::vector<metal::TrialShapes> out;
  bool small = size == metal::TrialSize::kSmall;
  for (int n_k : small ? kSmall : kLarge) {
    metal::TrialShapes shapes;
    for (int i = 0; i < 3; ++i) {
      const auto& a = inputs[i];
      int length = i == 0 ? a.shape(-2) : n_k;
      shapes.push_back({a.shape(-3), length, a.shape(-1)});
    }
    for (auto input : kInputs) {
      if (!settings.has(input)) continue;
      const auto& shape = inputs[settings.at(input)].shape();
      int n_batch_dims = static_cast<int>(shape.size());
      shapes.push_back(option_shape(input, shape, n_batch_dims, n_k, settings));
    }
    out.push_back(std::move(shapes));
  }
  return out;
}

mx::array trial_queries(const mx::Shape& shape, mx::Dtype dtype) {
  return gaps(-64, 64, shape, dtype, 1);  // so many that equal scores are rare
}

mx::array trial_keys(const mx::Shape& shape, mx::Dtype dtype, uint64_t seed) {
  // Few columns make few different scores, and equal ones share a weight: thirds are not exact.
  int most = shape.back() < 64 ? 127 : 8;
  return whole(-most, most, shape, dtype, seed);
}

mx::array trial_values(const mx::Shape& shape, mx::Dtype dtype) {
  auto s = metal::trial_stream();
  return mx::multiply(whole(1, 8, shape, dtype, 3), mx::array(12, dtype), s);
}

std::vector<mx::array> attention_trial_options(const metal::TrialShapes& shapes,
                                               const std::vector<mx::array>& inputs,
                                               const AttentionSettings& settings) {
  std::vector<mx::array> options;
  int n_q = shapes[0].end()[-2], n_k = shapes[1].end()[-2];
  for (auto input : kInputs) {
    if (!settings.has(input)) continue;
    size_t at = settings.at(input) + (shapes.size() - settings.n_inputs());
    options.push_back(trial_option(input, shapes[at], inputs[at].dtype(), n_q, n_k));
  }
  return options;
}

}  // namespace mto
