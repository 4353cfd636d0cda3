#pragma once

// One attention call in guarded buffers, and the same in double, by the definition.

#include <algorithm>
#include <deque>
#include <vector>

#include "harness.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_schedule.h"

namespace test {

using namespace mto;

struct AttentionCase {
  int64_t n_heads, n_kv_heads, n_q, n_k, d, d_v;
  FloatType type = FloatType::kFloat32;
  int32_t left = kNoLimit, right = kNoLimit;
  float softcap = 0;
  MaskKind mask = MaskKind::kNone;
  bool alibi = false, sinks = false, segments = false, blocks = false;
  std::string name() const {
    auto s = [](int64_t n) { return std::to_string(n) + " "; };
    return s(n_heads) + s(n_kv_heads) + s(n_q) + s(n_k) + s(d) + s(d_v) + name_of(type) + " l" +
           s(left) + "r" + s(right) + (softcap > 0 ? "cap " : "") +
           (mask == MaskKind::kBool       ? "bool "
            : mask == MaskKind::kAdditive ? "additive "
                                          : "") +
           (alibi ? "alibi " : "") + (sinks ? "sinks " : "") + (segments ? "segments " : "") +
           (blocks ? "blocks " : "");
  }
};

constexpr int64_t kNoOffset[] = {0};

struct AttentionProblem {
  explicit AttentionProblem(const AttentionCase& c)
      : c(c), rows(c.n_q), lse(c.n_heads * c.n_q * sizeof(float)) {
    auto& p = grads.forward;
    p.n_batch = 1;
    p.n_heads = c.n_heads;
    p.n_kv_heads = c.n_kv_heads;
    p.n_q = c.n_q;
    p.n_k = c.n_k;
    p.d = c.d;
    p.d_v = c.d_v;
    p.type = c.type;
    p.scale = 1.0f / 8;
    p.softcap = c.softcap;
    p.q = matrix(c.type, c.n_heads, c.n_q, c.d);
    p.k = matrix(c.type, c.n_kv_heads, c.n_k, c.d);
    p.v = matrix(c.type, c.n_kv_heads, c.n_k, c.d_v);
    if (c.alibi) p.alibi = vector(c.n_heads, 0, 0.1f);
    if (c.sinks) p.sinks = vector(c.n_heads, -2, 2);
    set_mask();
    if (c.segments) {
      p.q_segments = ids(c.n_q);
      p.k_segments = ids(c.n_k);
    }
    if (c.blocks) set_blocks();
    for (int i = 0; i < c.n_q; ++i) {
      rows[i] = row_keys(i, {static_cast<int32_t>(c.n_q), 0, static_cast<int32_t>(c.n_k)}, c.left,
                         c.right);
    }
    p.rows = rows.data();
    p.out = results(c.type, c.n_heads * c.n_q * c.d_v);
    p.lse = lse.data<float>();
    set_grads();
  }

  const AttentionParams& params() const { return grads.forward; }

  double value(const AttentionOperand& o, int64_t h, int64_t i, int64_t j) const {
    return read(o.type, o.data, o.offset(0, h, i, j));
  }

  double product(int64_t h, int64_t i, int64_t j) const {
    double sum = 0;
    int64_t kv = h / (c.n_heads / c.n_kv_heads);
    for (int64_t x = 0; x < c.d; ++x)
      sum += value(params().q, h, i, x) * value(params().k, kv, j, x);
    return params().scale * sum;
  }

  bool visible(int64_t h, int64_t i, int64_t j) const {
    const auto& p = params();
    if (j < rows[i].begin || j >= rows[i].end) return false;
    auto id = [&](const AttentionOperand& o, int64_t i) {
      return static_cast<const int32_t*>(o.data)[i];
    };
    if (c.segments && (id(p.q_segments, i) < 0 || id(p.q_segments, i) != id(p.k_segments, j))) {
      return false;
    }
    auto byte = [&](const AttentionOperand& o, int64_t i, int64_t j) {
      return static_cast<const uint8_t*>(o.data)[o.offset(0, h, i, j)] != 0;
    };
    if (c.blocks && !byte(p.block_mask, i / p.block_rows, j / p.block_keys)) return false;
    return c.mask != MaskKind::kBool || byte(p.mask, i, j);
  }

  // The score, and its derivative by the scaled product.
  std::pair<double, double> score(int64_t h, int64_t i, int64_t j) const {
    const auto& p = params();
    if (!visible(h, i, j)) return {-INFINITY, 0};
    double s = product(h, i, j), slope = 1;
    if (c.softcap > 0) {
      double t = std::tanh(s / c.softcap);
      s = c.softcap * t;
      slope = 1 - t * t;
    }
    if (c.alibi) s -= value(p.alibi, h, 0, 0) * std::abs(rows[i].aligned - static_cast<double>(j));
    if (c.mask == MaskKind::kAdditive) s += value(p.mask, h, i, j);
    return {s, slope};
  }

  AttentionCase c;
  std::deque<Guarded> buffers;
  std::vector<RowKeys> rows;
  Guarded lse;
  AttentionGradParams grads{};
  AttentionGradMask mask_shape;

 private:
  AttentionOperand operand(FloatType type, void* data, int64_t head, int64_t row, int64_t column) {
    return {data, kNoOffset, head, row, column, type};
  }

  void* results(FloatType type, int64_t n) {
    auto& buffer = buffers.emplace_back(n * size_of(type));
    std::memset(buffer.data(), 0xff, buffer.n_bytes());
    return buffer.data();
  }

  AttentionOperand matrix(FloatType type, int64_t n_heads, int64_t n, int64_t d) {
    auto& buffer = buffers.emplace_back(n_heads * n * d * size_of(type));
    fill_exact(buffer, type, -1, 1);
    return operand(type, buffer.data(), n * d, d, 1);
  }

  AttentionOperand vector(int64_t n, float low, float high) {
    auto& buffer = buffers.emplace_back(n * sizeof(float));
    fill_exact(buffer, FloatType::kFloat32, low, high);
    return operand(FloatType::kFloat32, buffer.data(), 1, 0, 0);
  }

  // Runs of one id, some of it padding.
  AttentionOperand ids(int64_t n) {
    auto& buffer = buffers.emplace_back(n * sizeof(int32_t));
    for (int64_t i = 0; i < n; ++i)
      buffer.data<int32_t>()[i] = static_cast<int32_t>(i / 37) % 4 - 1;
    return operand(FloatType::kFloat32, buffer.data(), 0, 1, 0);
  }

  AttentionOperand bytes(int64_t n_rows, int64_t n_columns) {
    auto& buffer = buffers.emplace_back(n_rows * n_columns);
    for (size_t i = 0; i < buffer.n_bytes(); ++i) buffer.data()[i] = rng()() % 3 != 0;
    return operand(FloatType::kFloat32, buffer.data(), 0, n_columns, 1);
  }

  void set_mask() {
    auto& p = grads.forward;
    p.mask_kind = c.mask;
    if (c.mask == MaskKind::kBool) p.mask = bytes(c.n_q, c.n_k);
    if (c.mask != MaskKind::kAdditive) return;
    p.mask = matrix(c.type, 1, c.n_q, c.n_k);
    p.mask.head = 0;
    grads.d_mask =
        operand(FloatType::kFloat32, results(FloatType::kFloat32, c.n_q * c.n_k), 0, c.n_k, 1);
    mask_shape = {1, c.n_q, c.n_k, {0}};
  }

  void set_blocks() {
    auto& p = grads.forward;
    p.block_rows = 16;
    p.block_keys = 48;
    p.block_mask = bytes((c.n_q + 15) / 16, (c.n_k + 47) / 48);
  }

  void set_grads() {
    auto& p = grads.forward;
    grads.out = operand(c.type, p.out, c.n_q * c.d_v, c.d_v, 1);
    grads.d_out = matrix(c.type, c.n_heads, c.n_q, c.d_v);
    grads.lse = operand(FloatType::kFloat32, p.lse, c.n_q, 1, 0);
    grads.d_lse = matrix(FloatType::kFloat32, c.n_heads, c.n_q, 1);
    grads.d_lse.row = 1;
    grads.grad_type = c.type;
    grads.d_q = results(c.type, c.n_heads * c.n_q * c.d);
    grads.d_k = results(c.type, c.n_kv_heads * c.n_k * c.d);
    grads.d_v = results(c.type, c.n_kv_heads * c.n_k * c.d_v);
    if (c.alibi) grads.d_alibi = static_cast<float*>(results(FloatType::kFloat32, c.n_heads));
  }
};

}  // namespace test
