// Tiles of rows against tiles of keys with a running maximum (Milakov and Gimelshein 2018,
// arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135). All arithmetic is float32. A row's sums go
// over the keys in ascending order, whatever rows it shares a tile with.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/simd.h"
#include "cpu/thread_pool.h"

namespace mto::MTO_ISA {
namespace {

constexpr int64_t kRows = 16;
constexpr int64_t kKeys = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float* carve(float*& scratch, int64_t n) {
  float* start = scratch;
  scratch += n;
  return start;
}

// Rows begin .. end of an operand of width d, as float32, one after the other.
void load_rows(const AttentionOperand& operand, int64_t b, int64_t h, int64_t begin, int64_t end,
               int64_t d, float* out) {
  for (int64_t i = begin; i < end; ++i) {
    convert_to_float(operand.type, operand.data, operand.offset(b, h, i), d, out + (i - begin) * d);
  }
}

float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum = std::fma(a[i], b[i], sum);
  return sum;
}

void add_scaled(float* out, float factor, const float* a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::fma(factor, a[i], out[i]);
}

int32_t id_at(const AttentionOperand& segments, int64_t b, int64_t i) {
  return static_cast<const int32_t*>(segments.data)[segments.offset(b, 0, i)];
}

// The scores of one query head, and which of them count.
class Scores {
 public:
  Scores(const AttentionParams& p, int64_t b, int64_t h) : p_(p), b_(b), h_(h) {
    if (p.alibi) slope_ = load_one(p.alibi.type, p.alibi.data, p.alibi.offset(b, h));
  }

  Visibility of_tile(AttentionRange rows, AttentionRange keys) const {
    TileRows row_extremes;
    TileKeys key_extremes{static_cast<int32_t>(keys.begin), static_cast<int32_t>(keys.end)};
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      row_extremes.add(p_.rows[i]);
      if (p_.q_segments) row_extremes.add_segment(id_at(p_.q_segments, b_, i));
    }
    auto visibility = range_visibility(row_extremes, key_extremes);
    if (p_.q_segments && visibility != Visibility::kNone) {
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        key_extremes.add_segment(id_at(p_.k_segments, b_, j));
      }
      visibility = both(visibility, segment_visibility(row_extremes, key_extremes));
    }
    if (p_.block_mask && visibility != Visibility::kNone) {
      auto blocks = block_visibility(
          static_cast<int32_t>(rows.begin), static_cast<int32_t>(rows.end),
          static_cast<int32_t>(keys.begin), static_cast<int32_t>(keys.end), p_.block_rows,
          p_.block_keys, [&](int32_t i, int32_t j) { return block(i, j); });
      visibility = both(visibility, blocks);
    }
    return visibility;
  }

  // -infinity where the key is not visible. `slope` is the derivative of the softcap.
  float operator()(int64_t i, int64_t j, float product, Visibility tile, float& slope) const {
    slope = 1;
    if (tile != Visibility::kAll && !visible(i, j)) return -kInfinity;
    float score = p_.scale * product;
    if (p_.softcap > 0) {
      float t = std::tanh(score / p_.softcap);
      slope = 1 - t * t;
      score = p_.softcap * t;
    }
    if (p_.alibi) score -= slope_ * distance(i, j);
    if (p_.mask_kind == MaskKind::kNone) return score;
    int64_t at = p_.mask.offset(b_, h_, i, j);
    if (p_.mask_kind == MaskKind::kBool) {
      return static_cast<const bool*>(p_.mask.data)[at] ? score : -kInfinity;
    }
    return score + load_one(p_.mask.type, p_.mask.data, at);
  }

  float distance(int64_t i, int64_t j) const {
    return static_cast<float>(std::abs(p_.rows[i].aligned - j));
  }

 private:
  bool block(int64_t i, int64_t j) const {
    return static_cast<const bool*>(p_.block_mask.data)[p_.block_mask.offset(b_, h_, i, j)];
  }

  bool visible(int64_t i, int64_t j) const {
    const auto& keys = p_.rows[i];
    if (j < keys.begin || j >= keys.end) return false;
    if (p_.q_segments) {
      int32_t id = id_at(p_.q_segments, b_, i);
      if (id < 0 || id != id_at(p_.k_segments, b_, j)) return false;
    }
    return !p_.block_mask || block(i / p_.block_rows, j / p_.block_keys);
  }

  const AttentionParams& p_;
  int64_t b_, h_;
  float slope_ = 0;
};

// Calls f(tile, visibility) for the tiles of keys that some of the rows may see.
template <typename F>
void visible_tiles(const Scores& scores, int64_t n_k, AttentionRange rows, F&& f) {
  for (int64_t begin = 0; begin < n_k; begin += kKeys) {
    AttentionRange keys{begin, std::min(begin + kKeys, n_k)};
    auto visibility = scores.of_tile(rows, keys);
    if (visibility != Visibility::kNone) f(keys, visibility);
  }
}

// The sums of one row: weights exp(score - top), and values under them.
struct Row {
  float top = -kInfinity, total = 0;

  void add(const float* scores, AttentionRange keys, const float* v, int64_t d_v, float* out) {
    int64_t n = keys.end - keys.begin;
    float highest = *std::max_element(scores, scores + n);
    if (highest == -kInfinity) return;
    if (highest > top) {
      float factor = std::exp(top - highest);
      total *= factor;
      for (int64_t c = 0; c < d_v; ++c) out[c] *= factor;
      top = highest;
    }
    for (int64_t j = 0; j < n; ++j) {
      float weight = std::exp(scores[j] - top);
      total += weight;
      add_scaled(out, weight, v + j * d_v, d_v);
    }
  }
};

void write_row(const AttentionParams& p, int64_t b, int64_t h, int64_t i, Row row, float* out) {
  int64_t at = (b * p.n_heads + h) * p.n_q + i;
  if (p.sinks) {
    float sink = load_one(p.sinks.type, p.sinks.data, p.sinks.offset(b, h));
    float top = std::max(row.top, sink);
    if (top > -kInfinity) {
      float factor = std::exp(row.top - top);
      row.total = row.total * factor + std::exp(sink - top);
      for (int64_t c = 0; c < p.d_v; ++c) out[c] *= factor;
      row.top = top;
    }
  }
  p.lse[at] = row.total == 0 ? -kInfinity : row.top + std::log(row.total);
  for (int64_t c = 0; c < p.d_v; ++c) {
    store_one(p.type, p.out, at * p.d_v + c, row.total == 0 ? 0 : out[c] / row.total);
  }
}

void forward_tile(const AttentionParams& p, int64_t b, int64_t h, AttentionRange rows) {
  int64_t kv_head = h / (p.n_heads / p.n_kv_heads);
  int64_t n_floats = (kRows + kKeys) * (p.d + p.d_v) + kRows * kKeys;
  auto* scratch = static_cast<float*>(thread_scratch(n_floats * sizeof(float)));
  float* q = carve(scratch, kRows * p.d);
  float* k = carve(scratch, kKeys * p.d);
  float* v = carve(scratch, kKeys * p.d_v);
  float* out = carve(scratch, kRows * p.d_v);
  float* scores = carve(scratch, kKeys);
  Row sums[kRows];
  Scores score(p, b, h);
  load_rows(p.q, b, h, rows.begin, rows.end, p.d, q);
  std::fill(out, out + kRows * p.d_v, 0.0f);
  visible_tiles(score, p.n_k, rows, [&](AttentionRange keys, Visibility visibility) {
    load_rows(p.k, b, kv_head, keys.begin, keys.end, p.d, k);
    load_rows(p.v, b, kv_head, keys.begin, keys.end, p.d_v, v);
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      float slope;
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        float product = dot(q + (i - rows.begin) * p.d, k + (j - keys.begin) * p.d, p.d);
        scores[j - keys.begin] = score(i, j, product, visibility, slope);
      }
      sums[i - rows.begin].add(scores, keys, v, p.d_v, out + (i - rows.begin) * p.d_v);
    }
  });
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    write_row(p, b, h, i, sums[i - rows.begin], out + (i - rows.begin) * p.d_v);
  }
}

void forward(const AttentionParams& p, int64_t b, int64_t h, AttentionRange rows) {
  for (int64_t begin = rows.begin; begin < rows.end; begin += kRows) {
    forward_tile(p, b, h, {begin, std::min(begin + kRows, rows.end)});
  }
}

// What the gradients of one row need of it.
struct GradRow {
  const float* q;
  const float* d_out;
  float lse, constant;  // d score = weight * (d_out . v - constant)
};

GradRow grad_row(const AttentionGradParams& g, int64_t b, int64_t h, int64_t i, float* q,
                 float* d_out, float* out) {
  const auto& p = g.forward;
  load_rows(p.q, b, h, i, i + 1, p.d, q);
  load_rows(g.d_out, b, h, i, i + 1, p.d_v, d_out);
  load_rows(g.out, b, h, i, i + 1, p.d_v, out);
  float lse = static_cast<const float*>(g.lse.data)[g.lse.offset(b, h, i)];
  float d_lse = static_cast<const float*>(g.d_lse.data)[g.d_lse.offset(b, h, i)];
  return {q, d_out, lse, dot(d_out, out, p.d_v) - d_lse};
}

// The weight of a key, and the derivative of its score.
struct GradScore {
  float weight, d_score, slope;
};

GradScore grad_score(const AttentionParams& p, const Scores& score, const GradRow& row, int64_t i,
                     int64_t j, const float* k, const float* v, Visibility visibility) {
  GradScore result{};
  float s = score(i, j, dot(row.q, k, p.d), visibility, result.slope);
  if (s == -kInfinity || row.lse == -kInfinity) return result;
  result.weight = std::exp(s - row.lse);
  result.d_score = result.weight * (dot(row.d_out, v, p.d_v) - row.constant);
  return result;
}

// All rows of one query head: writes d_q, adds to the sums of d_k and d_v; returns d_alibi.
float backward_head(const AttentionGradParams& g, int64_t b, int64_t h, float* d_k, float* d_v) {
  const auto& p = g.forward;
  int64_t kv_head = h / (p.n_heads / p.n_kv_heads);
  int64_t n_floats = (2 + kKeys) * p.d + (2 + kKeys) * p.d_v;
  auto* scratch = static_cast<float*>(thread_scratch(n_floats * sizeof(float)));
  float* q = carve(scratch, p.d);
  float* d_q = carve(scratch, p.d);
  float* d_out = carve(scratch, p.d_v);
  float* out = carve(scratch, p.d_v);
  float* k = carve(scratch, kKeys * p.d);
  float* v = carve(scratch, kKeys * p.d_v);
  Scores score(p, b, h);
  float d_alibi = 0;
  for (int64_t i = 0; i < p.n_q; ++i) {
    auto row = grad_row(g, b, h, i, q, d_out, out);
    std::fill(d_q, d_q + p.d, 0.0f);
    visible_tiles(score, p.n_k, {i, i + 1}, [&](AttentionRange keys, Visibility visibility) {
      load_rows(p.k, b, kv_head, keys.begin, keys.end, p.d, k);
      load_rows(p.v, b, kv_head, keys.begin, keys.end, p.d_v, v);
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        const float* key = k + (j - keys.begin) * p.d;
        auto grad = grad_score(p, score, row, i, j, key, v + (j - keys.begin) * p.d_v, visibility);
        d_alibi -= grad.d_score * score.distance(i, j);
        float d_product = p.scale * grad.slope * grad.d_score;
        add_scaled(d_q, d_product, key, p.d);
        add_scaled(d_k + j * p.d, d_product, q, p.d);
        add_scaled(d_v + j * p.d_v, grad.weight, d_out, p.d_v);
      }
    });
    convert_from_float(g.grad_type, d_q, p.d, g.d_q, ((b * p.n_heads + h) * p.n_q + i) * p.d);
  }
  return d_alibi;
}

void backward(const AttentionGradParams& g, int64_t b, int64_t kv_head, float* sums) {
  const auto& p = g.forward;
  int64_t at = b * p.n_kv_heads + kv_head, group = p.n_heads / p.n_kv_heads;
  float* d_k = sums + at * p.n_k * (p.d + p.d_v);
  float* d_v = d_k + p.n_k * p.d;
  std::fill(d_k, d_v + p.n_k * p.d_v, 0.0f);
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    float d_alibi = backward_head(g, b, h, d_k, d_v);
    if (g.d_alibi) g.d_alibi[b * p.n_heads + h] = d_alibi;
  }
  convert_from_float(g.grad_type, d_k, p.n_k * p.d, g.d_k, at * p.n_k * p.d);
  convert_from_float(g.grad_type, d_v, p.n_k * p.d_v, g.d_v, at * p.n_k * p.d_v);
}

// A range of the mask's own indices along an axis of n, spread over the axis where it broadcasts.
AttentionRange spread(AttentionRange own, int64_t stride, int64_t n) {
  return stride == 0 ? AttentionRange{0, n} : own;
}

// d_mask of all rows and keys that one head adds to.
void mask_grad_head(const AttentionGradParams& g, int64_t b, int64_t h, AttentionRange rows,
                    AttentionRange keys) {
  const auto& p = g.forward;
  int64_t kv_head = h / (p.n_heads / p.n_kv_heads);
  int64_t n_floats = 2 * p.d + 3 * p.d_v;
  auto* scratch = static_cast<float*>(thread_scratch(n_floats * sizeof(float)));
  float* q = carve(scratch, p.d);
  float* k = carve(scratch, p.d);
  float* d_out = carve(scratch, p.d_v);
  float* out = carve(scratch, p.d_v);
  float* v = carve(scratch, p.d_v);
  auto* d_mask = const_cast<float*>(static_cast<const float*>(g.d_mask.data));
  Scores score(p, b, h);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    AttentionRange seen{std::max<int64_t>(keys.begin, p.rows[i].begin),
                        std::min<int64_t>(keys.end, p.rows[i].end)};
    auto row = grad_row(g, b, h, i, q, d_out, out);
    for (int64_t j = seen.begin; j < seen.end; ++j) {
      load_rows(p.k, b, kv_head, j, j + 1, p.d, k);
      load_rows(p.v, b, kv_head, j, j + 1, p.d_v, v);
      auto grad = grad_score(p, score, row, i, j, k, v, Visibility::kSome);
      d_mask[g.d_mask.offset(b, h, i, j)] += grad.d_score;
    }
  }
}

void mask_grad(const AttentionGradParams& g, int64_t b, int64_t h, AttentionRange rows,
               AttentionRange keys) {
  const auto& p = g.forward;
  auto* d_mask = const_cast<float*>(static_cast<const float*>(g.d_mask.data));
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    for (int64_t j = keys.begin; j < keys.end; ++j) d_mask[g.d_mask.offset(b, h, i, j)] = 0;
  }
  auto heads = spread({h, h + 1}, g.d_mask.head, p.n_heads);
  for (int64_t other = b; other < p.n_batch; ++other) {
    if (g.d_mask.batch[other] != g.d_mask.batch[b]) continue;
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      mask_grad_head(g, other, head, spread(rows, g.d_mask.row, p.n_q),
                     spread(keys, g.d_mask.column, p.n_k));
    }
  }
}

}  // namespace

extern const ScaledDotProductAttentionKernels scaled_dot_product_attention_kernels;
const ScaledDotProductAttentionKernels scaled_dot_product_attention_kernels{forward, backward,
                                                                            mask_grad};

}  // namespace mto::MTO_ISA
