#pragma once

// The forward pass of a block of query rows over tiles of keys. Each tile gives a row sums relative
// to the tile's own highest score (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
// arXiv:2205.14135), which are merged into the row's. Tiles may therefore be done apart and merged
// later, to the same bits, and a tile that a row does not see changes nothing.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_products.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_sums.h"

namespace mto::MTO_ISA {
namespace {

// Scores become weights relative to the highest of them; returns their total.
MTO_INLINE float weigh(float* scores, const Runs& keys, float& top) {
  Vec highest_of = broadcast(-kInfinity);
  for (int i = 0; i < keys.n; ++i) {
    for (int j = keys.runs[i].begin; j < keys.runs[i].end; j += kLanes) {
      highest_of = max(highest_of, load(scores + j));
    }
  }
  top = highest(highest_of);
  Vec base = broadcast(top == -kInfinity ? 0 : top), sum = zero();
  for (int i = 0; i < keys.n; ++i) {
    for (int j = keys.runs[i].begin; j < keys.runs[i].end; j += kLanes) {
      Vec weight = exp(sub(load(scores + j), base));
      store(scores + j, weight);
      sum = add(sum, weight);
    }
  }
  return total(sum);
}

// Products: the two products, and how many rows they take at a time.
template <typename Products>
class Forward {
 public:
  // Sums go to `sums`, of attention_sums_floats floats, where it is given.
  Forward(const AttentionParams& p, int64_t b, int64_t kv_head, AttentionRange rows,
          float* sums = nullptr)
      : p_(p),
        b_(b),
        kv_head_(kv_head),
        n_rows_(static_cast<int>(rows.end - rows.begin)),
        s_(scratch([&](Cutter& cutter) { return Scratch(cutter, p, n_rows_, sums); })),
        scores_(p, b) {
    fill_rows(p, b, kv_head, rows, s_.rows);
    s_.products.take_rows(b, kv_head, rows);
    for (int block = 0; block * kBlock < n_rows_; ++block) {
      extremes_[block] = scores_.extremes(s_.rows + block * kBlock, block_rows(block));
      all_.add({0, extremes_[block].begin_min, extremes_[block].end_max});
    }
    s_.sums.clear(n_rows_);
  }

  void run(int64_t first_tile, int64_t last_tile) {
    int64_t first = std::max<int64_t>(first_tile, all_.begin_min / kTile);
    int64_t last = std::min<int64_t>(last_tile, (all_.end_max + kTile - 1) / kTile);
    for (int64_t tile = first; tile < last; ++tile) add_tile(tile);
  }

  // Divides the sums, and writes out and lse.
  void finish() {
    for (int r = 0; r < n_rows_; ++r) {
      write_row(p_, b_, s_.rows[r], s_.sums.tops[r], s_.sums.totals[r],
                s_.sums.values + r * s_.sums.stride);
    }
  }

 private:
  static constexpr int kBlock = Products::kBlock;
  static constexpr int kMaxBlocks = kMaxAttentionRows / kBlock;

  struct Scratch {
    Scratch(Cutter& cutter, const AttentionParams& p, int64_t n_rows, float* given)
        : products(cutter, p, n_rows) {
      rows = cutter.take<QueryRow>(n_rows);
      scores = cutter.take(kBlock * kScoreStride);
      float* own = cutter.take(given ? 0 : attention_sums_floats(n_rows, p.d_v));
      sums = RowSums::at(given ? given : own, n_rows, p.d_v);
    }
    Products products;
    QueryRow* rows;
    float* scores;
    RowSums sums;
  };

  int block_rows(int block) const { return std::min(kBlock, n_rows_ - block * kBlock); }

  void add_tile(int64_t index) {
    auto tile = key_tile(p_, b_, index);
    uint32_t seen = 0;
    for (int block = 0; block * kBlock < n_rows_; ++block) {
      for (int s = 0; s < tile.n_steps(); ++s) {
        visibility_[block][s] = scores_.of_step(s_.rows + block * kBlock, block_rows(block),
                                                extremes_[block], tile.steps[s]);
        if (visibility_[block][s] != Visibility::kNone) seen |= 1u << s;
      }
    }
    if (seen == 0) return;
    for (int s = 0; s < tile.n_steps(); ++s) {
      if (seen >> s & 1) s_.products.take_keys(b_, kv_head_, s, tile.first_key(s), tile.n_keys(s));
    }
    for (int block = 0; block * kBlock < n_rows_; ++block) add_block(tile, block);
  }

  void add_block(const KeyTile& tile, int block) {
    int n = block_rows(block), row = block * kBlock;
    Runs steps, keys;
    for (int s = 0; s < tile.n_steps(); ++s) {
      if (visibility_[block][s] == Visibility::kNone) continue;
      steps.add(s * kStep, (s + 1) * kStep);
      keys.add(s * kStep, s * kStep + tile.n_keys(s));
    }
    if (steps.n == 0) return;
    for (int i = 0; i < steps.n; ++i) {
      auto [begin, end] = steps.runs[i];
      s_.products.multiply_keys(row, n, begin / kStep, (end - begin) / kStep, s_.scores + begin);
    }
    score(tile, block);
    alignas(64) float tops[kBlock + kLanes] = {}, totals[kBlock + kLanes] = {};
    for (int r = 0; r < n; ++r) totals[r] = weigh(s_.scores + r * kScoreStride, steps, tops[r]);
    MergeFactors<kBlock> factors;
    auto sums = s_.sums.from(row);
    factors.compute(sums.tops, sums.totals, tops, totals, n);
    s_.products.multiply_values(
        n, s_.scores, keys,
        Merge{sums.values, sums.stride, factors.old_factors, factors.new_factors});
  }

  void score(const KeyTile& tile, int block) {
    for (int s = 0; s < tile.n_steps(); ++s) {
      auto visibility = visibility_[block][s];
      if (visibility == Visibility::kNone || scores_.plain(visibility)) continue;
      for (int r = 0; r < block_rows(block); ++r) {
        scores_.apply(s_.rows[block * kBlock + r], tile.first_key(s), visibility,
                      s_.scores + r * kScoreStride + s * kStep, nullptr);
      }
    }
  }

  [[no_unique_address]] typename Products::Session session_;
  const AttentionParams& p_;
  int64_t b_, kv_head_;
  int n_rows_;
  Scratch s_;
  Scores scores_;
  TileRows all_;
  TileRows extremes_[kMaxBlocks];
  Visibility visibility_[kMaxBlocks][kSteps];
};

}  // namespace
}  // namespace mto::MTO_ISA
