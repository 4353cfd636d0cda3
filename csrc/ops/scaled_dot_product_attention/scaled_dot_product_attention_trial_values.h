#pragma once

// Calls of attention for which every right kernel gives the same bits: whole numbers, and scores so
// far apart that the softmax of a row is 1 for one key and 0 for all others.

#include "metal/trial.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

namespace mto {

// Scores differ by this at least, or are equal: exp of less is 0 in float32.
constexpr int kTrialGap = 128;

// Scale and softcap that keep whole numbers.
AttentionSettings exact_settings(AttentionSettings settings);

// Of inputs in the dense primitive's order, with fewer keys and one batch element, or more keys.
// The last axes of k and v stay what they are.
std::vector<metal::TrialShapes> attention_trial_shapes(const std::vector<mx::array>& inputs,
                                                       const AttentionSettings& settings,
                                                       metal::TrialSize size);

// Queries are multiples of the gap.
mx::array trial_queries(const mx::Shape& shape, mx::Dtype dtype);
mx::array trial_keys(const mx::Shape& shape, mx::Dtype dtype, uint64_t seed);
// Positive, so that nothing becomes -0, and such that the mean of up to four is exact.
mx::array trial_values(const mx::Shape& shape, mx::Dtype dtype);
// The inputs behind q, k and v, whose shapes are among `shapes`.
std::vector<mx::array> attention_trial_options(const metal::TrialShapes& shapes,
                                               const std::vector<mx::array>& inputs,
                                               const AttentionSettings& settings);

}  // namespace mto
