#pragma once

// The sums of rows over parts of the keys, each relative to the part's own highest score: merged in
// ascending order, and made into results.

#include <cmath>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scores.h"

namespace mto::MTO_ISA {
namespace {

// What is known of a row after some tiles: the highest score, and weights and values summed
// relative to it.
struct RowSums {
  float* tops;
  float* totals;
  float* values;  // [n_rows, stride]
  int64_t stride;

  RowSums from(int row) const { return {tops + row, totals + row, values + row * stride, stride}; }
  // On attention_sums_floats floats.
  static RowSums at(float* floats, int64_t n_rows, int64_t d_v) {
    int64_t n = attention_padded(n_rows) + kAttentionPadding;
    return {floats, floats + n, floats + 2 * n, attention_padded(d_v)};
  }
  void clear(int64_t n_rows) const {
    std::fill(tops, tops + n_rows, -kInfinity);
    std::fill(totals, totals + n_rows, 0.0f);
    std::fill(values, values + n_rows * stride, 0.0f);
  }
};

// The factors that take two sums relative to two highest scores to the higher of the two.
template <int Rows>
struct MergeFactors {
  alignas(64) float old_factors[Rows + kLanes], new_factors[Rows + kLanes];

  MTO_INLINE void compute(float* tops, float* totals, const float* new_tops,
                          const float* new_totals, int n) {
    for (int r = 0; r < n; r += kLanes) {
      Vec old_top = load(tops + r), new_top = load(new_tops + r);
      Vec top = max(old_top, new_top);
      Vec base = select(broadcast(-kInfinity), top, top, zero());
      Vec old_factor = exp(sub(old_top, base)), new_factor = exp(sub(new_top, base));
      store(old_factors + r, old_factor);
      store(new_factors + r, new_factor);
      Vec old_total = mul(load(totals + r), old_factor);
      store_first(tops + r, top, n - r);
      store_first(totals + r, fma(load(new_totals + r), new_factor, old_total), n - r);
    }
  }

 private:
  // Rows behind the block's belong to the next one.
  static void store_first(float* out, Vec v, int n) {
    if (n >= kLanes) return store(out, v);
    float lanes[kLanes];
    store(lanes, v);
    std::copy_n(lanes, n, out);
  }
};

// out and lse of a row, from its sums, which are used up.
MTO_APART void write_row(const AttentionParams& p, int64_t b, const QueryRow& row, float top,
                         float total, float* values) {
  int64_t at = (b * p.n_heads + row.h) * p.n_q + row.i;
  Vec factor = broadcast(1);
  if (p.sinks) {
    // One more logit without a value.
    float sink = load_one(p.sinks.type, p.sinks.data, p.sinks.offset(b, row.h));
    float higher = std::max(top, sink);
    if (higher > -kInfinity) {
      float scale = std::exp(top - higher);
      total = total * scale + std::exp(sink - higher);
      factor = broadcast(scale);
      top = higher;
    }
  }
  p.lse[at] = total == 0 ? -kInfinity : top + std::log(total);
  Vec divisor = broadcast(total == 0 ? 1.0f : total);
  for (int64_t c = 0; c < p.d_v; c += kLanes) {
    store(values + c, div(mul(load(values + c), factor), divisor));
  }
  convert_from_float(p.type, values, p.d_v, p.out, at * p.d_v);
}

// Sums of parts of the keys, in ascending order, into the first of them; then the rows' results.
MTO_APART void merge_parts(const AttentionParams& p, int64_t b, int64_t kv_head,
                           AttentionRange rows, float* parts, int64_t n_parts) {
  auto n_rows = static_cast<int>(rows.end - rows.begin);
  int64_t part_floats = attention_sums_floats(n_rows, p.d_v);
  auto sums = RowSums::at(parts, n_rows, p.d_v);
  for (int64_t part = 1; part < n_parts; ++part) {
    auto other = RowSums::at(parts + part * part_floats, n_rows, p.d_v);
    for (int row = 0; row < n_rows; row += kRows) {
      int n = std::min(kRows, n_rows - row);
      MergeFactors<kRows> factors;
      factors.compute(sums.tops + row, sums.totals + row, other.tops + row, other.totals + row, n);
      for (int r = 0; r < n; ++r) {
        float* values = sums.values + (row + r) * sums.stride;
        const float* new_values = other.values + (row + r) * sums.stride;
        for (int64_t c = 0; c < p.d_v; c += kLanes) {
          Vec old = mul(load(values + c), broadcast(factors.old_factors[r]));
          store(values + c, fma(load(new_values + c), broadcast(factors.new_factors[r]), old));
        }
      }
    }
  }
  each_head(p, kv_head, rows.begin, rows.end, [&](int first, int n, int64_t h, int64_t i) {
    for (int r = first; r < first + n; ++r) {
      write_row(p, b, query_row(p, b, h, i + r - first), sums.tops[r], sums.totals[r],
                sums.values + r * sums.stride);
    }
  });
}

}  // namespace
}  // namespace mto::MTO_ISA
