#pragma once

#include <metal_stdlib>

#include "tile/attention_visibility.h"

// From a product q . k to a score.

namespace mto {

// What scores take of one batch element and query head.
struct AttentionScores {
  float scale, softcap;
  float slope;  // of alibi
  const device uchar* mask;
  int64_t mask_row, mask_column;
};

inline AttentionScores attention_scores(constant AttentionParams& params,
                                        thread const AttentionStarts& starts, int h,
                                        const device uchar* mask, const device float* alibi) {
  AttentionScores scores;
  scores.scale = params.scale;
  scores.softcap = params.softcap;
  scores.slope = 0.0f;
  if (attention_has_alibi) scores.slope = alibi[head_of(params, starts, kAttentionAlibi, h)];
  scores.mask = mask;
  if (attention_has_mask) {
    int size = attention_mask_type == kBoolMask ? 1 : attention_mask_type == kFloatMask ? 4 : 2;
    scores.mask += head_of(params, starts, kAttentionMask, h) * size;
  }
  scores.mask_row = params.operands[kAttentionMask].row;
  scores.mask_column = params.operands[kAttentionMask].column;
  return scores;
}

// What the array mask adds: 0 or -infinity where it is of bool.
inline float masked(thread const AttentionScores& scores, int i, int j) {
  int64_t at = i * scores.mask_row + j * scores.mask_column;
  if (attention_mask_type == kBoolMask) return scores.mask[at] ? 0.0f : -INFINITY;
  if (attention_mask_type == kFloatMask) return ((const device float*)scores.mask)[at];
  if (attention_mask_type == kHalfMask) return float(((const device half*)scores.mask)[at]);
  return float(((const device bfloat*)scores.mask)[at]);
}

// Scaled and capped; `tanh_of` is the tanh of the cap.
inline float capped(thread const AttentionScores& scores, float product, thread float& tanh_of) {
  float score = scores.scale * product;
  tanh_of = 0.0f;
  if (attention_has_softcap) {
    tanh_of = metal::precise::tanh(score / scores.softcap);
    score = scores.softcap * tanh_of;
  }
  return score;
}

// The score of a row and key j that it sees by everything but an array mask; -infinity where that
// excludes the key.
inline float score_of(thread const AttentionScores& scores, AttentionRow row, int j, float product,
                      thread float& tanh_of) {
  float score = capped(scores, product, tanh_of);
  if (attention_has_alibi) score -= scores.slope * float(metal::abs(row.keys.aligned - j));
  if (attention_has_mask) score += masked(scores, row.index, j);
  return score;
}

inline float score_of(thread const AttentionScores& scores, AttentionRow row, int j,
                      float product) {
  float tanh_of;
  return score_of(scores, row, j, product, tanh_of);
}

}  // namespace mto
