#pragma once

// The scores of a block of rows: which keys they see, and what options make of the products.

#include <cmath>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_kernels.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_pack.h"

namespace mto::MTO_ISA {
namespace {

// A query row of a KV head; `index` counts the rows of all query heads that read it, head by head.
struct QueryRow {
  int64_t h, i;
  RowKeys keys;
  int32_t segment;
  float slope;
};

inline int32_t id_at(const AttentionOperand& segments, int64_t b, int64_t i) {
  return static_cast<const int32_t*>(segments.data)[segments.offset(b, 0, i)];
}

// Of query head h.
inline QueryRow query_row(const AttentionParams& p, int64_t b, int64_t h, int64_t i) {
  QueryRow row{h, i, p.rows[i], 0, 0};
  if (p.q_segments) row.segment = id_at(p.q_segments, b, i);
  if (p.alibi) row.slope = load_one(p.alibi.type, p.alibi.data, p.alibi.offset(b, h));
  return row;
}

// Calls f(first, n, h, i) for the stretches of rows begin .. end that lie in one head.
template <typename F>
inline void each_head(const AttentionParams& p, int64_t kv_head, int64_t begin, int64_t end,
                      F&& f) {
  for (int64_t at = begin; at < end;) {
    int64_t i = at % p.n_q, n = std::min(end - at, p.n_q - i);
    f(static_cast<int>(at - begin), static_cast<int>(n), kv_head * p.group() + at / p.n_q, i);
    at += n;
  }
}

inline void fill_rows(const AttentionParams& p, int64_t b, int64_t kv_head, AttentionRange rows,
                      QueryRow* out) {
  each_head(p, kv_head, rows.begin, rows.end, [&](int first, int n, int64_t h, int64_t i) {
    for (int r = 0; r < n; ++r) out[first + r] = query_row(p, b, h, i + r);
  });
}

// Rows of an operand of the query heads, as panels of left rows times `factor`.
MTO_APART void pack_left_rows(const AttentionParams& p, const AttentionOperand& operand, int64_t b,
                              int64_t kv_head, AttentionRange rows, int64_t d, float factor,
                              float* out) {
  // A panel holds rows of several heads where a head ends within.
  for (int64_t row = rows.begin; row < rows.end; row += kLeftWidth, out += kLeftWidth * d) {
    each_head(p, kv_head, row, std::min(row + kLeftWidth, rows.end),
              [&](int first, int n, int64_t h, int64_t i) {
                pack_left(rows_of(operand, b, h, i, d), first, n, factor, out);
              });
  }
}

// The rows from `row` on of the panels of pack_left_rows; a multiple of kRows.
inline LeftPanel left_rows(const float* panels, int row, int64_t d) {
  return {panels + row / kLeftWidth * kLeftWidth * d + row % kLeftWidth};
}

// A tile of keys: kSteps steps, the last of which may lie behind the last key.
struct KeyTile {
  int64_t begin, end;
  TileKeys steps[kSteps];
  int n_steps() const { return static_cast<int>((end - begin + kStep - 1) / kStep); }
  int64_t first_key(int step) const { return begin + step * kStep; }
  int n_keys(int step) const {
    return static_cast<int>(std::min<int64_t>(kStep, end - first_key(step)));
  }
};

inline KeyTile key_tile(const AttentionParams& p, int64_t b, int64_t index) {
  KeyTile tile{index * kTile, std::min((index + 1) * kTile, p.n_k), {}};
  for (int s = 0; s < tile.n_steps(); ++s) {
    auto begin = static_cast<int32_t>(tile.begin + s * kStep);
    tile.steps[s] = {begin, begin + kStep};
    if (!p.q_segments) continue;
    for (int64_t j = begin; j < std::min<int64_t>(begin + kStep, tile.end); ++j) {
      tile.steps[s].add_segment(id_at(p.k_segments, b, j));
    }
  }
  return tile;
}

class Scores {
 public:
  Scores(const AttentionParams& p, int64_t b) : p_(p), b_(b) {
    changed_ = p.softcap > 0 || p.alibi || p.mask_kind != MaskKind::kNone;
  }

  TileRows extremes(const QueryRow* rows, int n) const {
    TileRows all;
    for (int r = 0; r < n; ++r) {
      all.add(rows[r].keys);
      if (p_.q_segments) all.add_segment(rows[r].segment);
    }
    return all;
  }

  Visibility of_step(const QueryRow* rows, int n, const TileRows& extremes, TileKeys keys) const {
    auto visibility = range_visibility(extremes, keys);
    if (p_.q_segments && visibility != Visibility::kNone) {
      visibility = both(visibility, segment_visibility(extremes, keys));
    }
    if (p_.block_mask && visibility != Visibility::kNone) {
      visibility = both(visibility, of_blocks(rows, n, keys));
    }
    return visibility;
  }

  // Whether a step that is visible as a whole has products for scores.
  bool plain(Visibility step) const { return step == Visibility::kAll && !changed_; }

  // Makes scores of the products of one row and the kStep keys from `begin` on. `slopes`, where
  // not null, gets the derivative of the softcap.
  void apply(const QueryRow& row, int64_t begin, Visibility step, float* scores,
             float* slopes) const {
    if (p_.softcap > 0) cap(scores, slopes);
    if (p_.alibi) bias(row, begin, scores);
    if (p_.mask_kind == MaskKind::kAdditive) add_mask(row, begin, scores);
    if (step != Visibility::kAll) limit(row.keys, begin, scores);
    bool picked = step != Visibility::kAll && (p_.q_segments || p_.block_mask);
    if (picked || p_.mask_kind == MaskKind::kBool) pick(row, begin, step, scores);
  }

  static MTO_INLINE Vec distances(const QueryRow& row, int64_t key) {
    Vec d = sub(broadcast(static_cast<float>(row.keys.aligned - key)), iota());
    return max(d, sub(zero(), d));
  }

 private:
  const uint8_t* block(const QueryRow& row, int64_t key_block) const {
    return static_cast<const uint8_t*>(p_.block_mask.data) +
           p_.block_mask.offset(b_, row.h, row.i / p_.block_rows, key_block);
  }

  Visibility of_blocks(const QueryRow* rows, int n, TileKeys keys) const {
    bool any = false, all = true;
    auto end = std::min<int64_t>(keys.end, p_.n_k);
    for (int r = 0; r < n; ++r) {
      bool same = r > 0 && rows[r].h == rows[r - 1].h &&
                  rows[r].i / p_.block_rows == rows[r - 1].i / p_.block_rows;
      for (int64_t j = keys.begin / p_.block_keys; !same && j * p_.block_keys < end; ++j) {
        bool computed = *block(rows[r], j);
        any = any || computed;
        all = all && computed;
      }
    }
    if (!any) return Visibility::kNone;
    return all ? Visibility::kAll : Visibility::kSome;
  }

  void cap(float* scores, float* slopes) const {
    for (int j = 0; j < kStep; j += kLanes) {
      Vec t = tanh(div(load(scores + j), broadcast(p_.softcap)));
      store(scores + j, mul(t, broadcast(p_.softcap)));
      if (slopes) store(slopes + j, fma(sub(zero(), t), t, broadcast(1.0f)));
    }
  }

  static void bias(const QueryRow& row, int64_t begin, float* scores) {
    for (int j = 0; j < kStep; j += kLanes) {
      Vec slope = broadcast(-row.slope);
      store(scores + j, fma(slope, distances(row, begin + j), load(scores + j)));
    }
  }

  void add_mask(const QueryRow& row, int64_t begin, float* scores) const {
    const auto& mask = p_.mask;
    int64_t at = mask.offset(b_, row.h, row.i, begin);
    int64_t n = std::min<int64_t>(kStep, p_.n_k - begin);
    if (mask.column != 1) {
      for (int64_t j = 0; j < n; ++j) {
        scores[j] += load_one(mask.type, mask.data, at + j * mask.column);
      }
      return;
    }
    with_type(mask.type, [&](auto type) {
      for (int64_t j = 0; j < n; j += kLanes) {
        Vec values = load_part(static_cast<FloatType>(type.value), mask.data, at + j, n - j);
        store(scores + j, add(load(scores + j), values));
      }
    });
  }

  static void limit(RowKeys keys, int64_t begin, float* scores) {
    auto bound = [&](int64_t key) {
      return broadcast(static_cast<float>(std::clamp<int64_t>(key - begin, 0, kStep)));
    };
    Vec first = bound(keys.begin), end = bound(keys.end), excluded = broadcast(-kInfinity);
    for (int j = 0; j < kStep; j += kLanes) {
      Vec key = add(iota(), broadcast(static_cast<float>(j)));
      Vec score = select(key, end, load(scores + j), excluded);
      store(scores + j, select(key, first, excluded, score));
    }
  }

  // Segments, the block mask and a bool mask, by a byte a key.
  void pick(const QueryRow& row, int64_t begin, Visibility step, float* scores) const {
    int64_t n = std::min<int64_t>(kStep, p_.n_k - begin);
    uint8_t seen[kStep];
    std::memset(seen, 1, kStep);
    if (p_.mask_kind == MaskKind::kBool) {
      auto mask = static_cast<const uint8_t*>(p_.mask.data);
      int64_t at = p_.mask.offset(b_, row.h, row.i, begin);
      for (int64_t j = 0; j < n; ++j) seen[j] = mask[at + j * p_.mask.column];
    }
    if (p_.q_segments && step != Visibility::kAll) {
      for (int64_t j = 0; j < n; ++j) {
        seen[j] &= row.segment >= 0 && row.segment == id_at(p_.k_segments, b_, begin + j);
      }
    }
    if (p_.block_mask && step != Visibility::kAll) {
      for (int64_t j = 0; j < n; ++j) seen[j] &= *block(row, (begin + j) / p_.block_keys);
    }
    unroll<kVecsPerBlock>([&](auto v) {
      float* at = scores + v.value * kLanes;
      Vec weight = to_float<8>(unpack<8, v.value>(seen));
      store(at, select(zero(), weight, load(at), broadcast(-kInfinity)));
    });
  }

  const AttentionParams& p_;
  int64_t b_;
  bool changed_;
};

}  // namespace
}  // namespace mto::MTO_ISA
