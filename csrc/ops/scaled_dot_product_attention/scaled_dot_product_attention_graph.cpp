#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_graph.h"

#include <limits>
#include <numeric>

#include "common/transforms.h"

namespace mto {
namespace {

using enum AttentionInput;

// Scores are [.., Hkv, G, Lq, Lk] with G query heads a KV head: matmul then broadcasts k and v.
class Graph {
 public:
  Graph(const std::vector<mx::array>& inputs, const AttentionSettings& settings, mx::Stream s)
      : inputs_(inputs),
        settings_(settings),
        s_(s),
        real_(inputs[0].dtype() == mx::float64 ? mx::float64 : mx::float32),
        n_kv_heads_(inputs[1].shape(-3)),
        group_(n_kv_heads_ == 0 ? 1 : inputs[0].shape(-3) / n_kv_heads_) {}

  std::vector<mx::array> outputs() {
    auto sinks = settings_.has(kSinks) ? std::optional(per_head(kSinks)) : std::nullopt;
    auto scores = this->scores();
    // Any finite number would do as the offset, which cancels: the extreme has no gradient.
    auto top = mx::max(scores, -1, true, s_);
    if (sinks) top = mx::maximum(top, *sinks, s_);
    top = mx::stop_gradient(mx::where(mx::isinf(top, s_), number(0), top, s_), s_);
    auto weights = mx::exp(mx::subtract(scores, top, s_), s_);
    auto total = mx::sum(weights, -1, true, s_);
    if (sinks) total = mx::add(total, mx::exp(mx::subtract(*sinks, top, s_), s_), s_);
    auto none = mx::equal(total, number(0), s_);
    total = mx::where(none, number(1), total, s_);
    auto v = mx::expand_dims(mx::astype(inputs_[2], real_, s_), -3, s_);
    auto out = mx::divide(mx::matmul(weights, v, s_), total, s_);
    auto lse = mx::where(none, number(-std::numeric_limits<float>::infinity()),
                         mx::add(top, mx::log(total, s_), s_), s_);
    out = poison(out);
    lse = mx::squeeze(poison(lse), -1, s_);
    return {mx::astype(mx::flatten(out, -4, -3, s_), inputs_[0].dtype(), s_),
            mx::astype(mx::flatten(lse, -3, -2, s_), mx::float32, s_)};
  }

 private:
  const mx::array& input(AttentionInput i) const { return inputs_[settings_.at(i)]; }

  mx::array number(double value) const { return mx::array(value, real_); }

  // [.., Hq or 1, a, b] -> [.., Hkv or 1, G or 1, a, b]
  mx::array split_heads(const mx::array& a) const {
    if (a.shape(-3) == 1) return mx::expand_dims(a, -3, s_);
    return mx::unflatten(a, -3, {n_kv_heads_, group_}, s_);
  }

  // [.., Hq] -> [.., Hkv, G, 1, 1]
  mx::array per_head(AttentionInput i) const {
    return split_heads(mx::expand_dims(input(i), std::vector<int>{-2, -1}, s_));
  }

  // Positions 0 .. n - 1 and the number of rows of q or k, whatever it is when the graph runs.
  std::pair<mx::array, mx::array> positions(const mx::array& a) const {
    std::vector<int> others(a.ndim());
    std::iota(others.begin(), others.end(), 0);
    others.erase(others.end() - 2);
    auto line = mx::stop_gradient(mx::sum(a, others, false, s_), s_);
    auto ones = ones_of(line, mx::int32, s_);
    return {mx::subtract(mx::cumsum(ones, 0, false, true, s_), mx::array(1), s_),
            mx::sum(ones, false, s_)};
  }

  mx::array scores() {
    auto q =
        split_heads(mx::multiply(mx::astype(inputs_[0], real_, s_), number(settings_.scale), s_));
    auto k = mx::expand_dims(mx::astype(inputs_[1], real_, s_), -3, s_);
    auto scores = mx::matmul(q, mx::swapaxes(k, -1, -2, s_), s_);
    if (settings_.softcap > 0) {
      auto cap = number(settings_.softcap);
      scores = mx::multiply(cap, mx::tanh(mx::divide(scores, cap, s_), s_), s_);
    }
    bool masked = settings_.has(kMask);
    bool additive = masked && input(kMask).dtype() != mx::bool_;
    if (settings_.has(kAlibi)) {
      auto distance = mx::astype(mx::abs(offsets(), s_), real_, s_);
      scores = mx::subtract(scores, mx::multiply(per_head(kAlibi), distance, s_), s_);
    }
    if (additive) {
      scores = mx::add(scores, mx::astype(split_heads(input(kMask)), real_, s_), s_);
    }
    auto minus_infinity = number(-std::numeric_limits<float>::infinity());
    auto exclude = [&](const mx::array& visible) {
      scores = mx::where(visible, scores, minus_infinity, s_);
    };
    if (masked && !additive) exclude(split_heads(input(kMask)));
    if (settings_.window_left != kNoLimit) {
      exclude(mx::less_equal(offsets(), mx::array(settings_.window_left), s_));
    }
    if (settings_.window_right != kNoLimit) {
      exclude(mx::greater_equal(offsets(), mx::array(-settings_.window_right), s_));
    }
    if (settings_.has(kQDocuments)) exclude(same_document());
    if (settings_.has(kQSegments)) exclude(same_segment());
    if (settings_.has(kBlockMask)) exclude(blocks());
    return scores;
  }

  mx::array as_column(const mx::array& a) const { return mx::expand_dims(a, -1, s_); }
  mx::array as_row(const mx::array& a) const { return mx::expand_dims(a, -2, s_); }

  // i' - j, [Lq, Lk]
  const mx::array& offsets() {
    if (offsets_) return *offsets_;
    auto [rows, n_rows] = positions(inputs_[0]);
    auto [keys, n_keys] = positions(inputs_[1]);
    auto aligned = mx::add(rows, mx::subtract(n_keys, n_rows, s_), s_);
    if (settings_.has(kQDocuments)) {
      auto end = mx::add(document(rows, kQDocuments), mx::array(1), s_);
      end = mx::minimum(end, mx::array(input(kQDocuments).shape(0) - 1), s_);
      aligned = mx::subtract(mx::take(input(kKDocuments), end, 0, s_),
                             mx::take(input(kQDocuments), end, 0, s_), s_);
      aligned = mx::add(rows, aligned, s_);
    }
    offsets_ = mx::subtract(as_column(aligned), as_row(keys), s_);
    return *offsets_;
  }

  // The document of each position: -1 before the first, n behind the last.
  mx::array document(const mx::array& at, AttentionInput lengths) const {
    auto begun = mx::less_equal(as_row(input(lengths)), as_column(at), s_);
    return mx::subtract(mx::sum(mx::astype(begun, mx::int32, s_), -1, false, s_), mx::array(1), s_);
  }

  mx::array same_document() const {
    auto of_rows = as_column(document(positions(inputs_[0]).first, kQDocuments));
    auto of_keys = as_row(document(positions(inputs_[1]).first, kKDocuments));
    auto inside = mx::logical_and(mx::greater_equal(of_rows, mx::array(0), s_),
                                  mx::less(of_rows, mx::array(n_documents()), s_), s_);
    return mx::logical_and(inside, mx::equal(of_rows, of_keys, s_), s_);
  }

  int n_documents() const { return input(kQDocuments).shape(0) - 1; }

  mx::array same_segment() const {
    auto of_rows = as_column(input(kQSegments)), of_keys = as_row(input(kKSegments));
    auto same = mx::logical_and(mx::equal(of_rows, of_keys, s_),
                                mx::greater_equal(of_rows, mx::array(0), s_), s_);
    return mx::expand_dims(same, std::vector<int>{-4, -3}, s_);
  }

  mx::array blocks() const {
    auto mask = split_heads(input(kBlockMask));
    auto spread = [&](const mx::array& operand, int size, int axis) {
      if (mask.shape(axis) == 1) return;
      auto block = mx::floor_divide(positions(operand).first, mx::array(size), s_);
      mask = mx::take(mask, block, axis, s_);
    };
    spread(inputs_[0], settings_.block_rows, -2);
    spread(inputs_[1], settings_.block_keys, -1);
    return mask;
  }

  // NaN where cu_seqlens is no valid list of documents.
  mx::array poison(const mx::array& a) const {
    if (!settings_.has(kQDocuments)) return a;
    auto bad = mx::logical_or(bad_documents(kQDocuments, inputs_[0]),
                              bad_documents(kKDocuments, inputs_[1]), s_);
    return mx::where(bad, number(std::numeric_limits<float>::quiet_NaN()), a, s_);
  }

  mx::array bad_documents(AttentionInput lengths, const mx::array& operand) const {
    const auto& ends = input(lengths);
    int n = n_documents();
    auto outside = mx::logical_or(mx::less(ends, mx::array(0), s_),
                                  mx::greater(ends, positions(operand).second, s_), s_);
    auto falls = mx::less(mx::slice(ends, {1}, {n + 1}, s_), mx::slice(ends, {0}, {n}, s_), s_);
    return mx::logical_or(mx::any(outside, s_), mx::any(falls, s_), s_);
  }

  const std::vector<mx::array>& inputs_;
  const AttentionSettings& settings_;
  mx::Stream s_;
  mx::Dtype real_;
  int n_kv_heads_, group_;
  std::optional<mx::array> offsets_;
};

// What remains where there is nothing to sum over, or to write.
std::vector<mx::array> without_scores(const std::vector<mx::array>& inputs,
                                      const AttentionSettings& settings, mx::Stream s) {
  const auto &q = inputs[0], &v = inputs[2];
  auto shape = attention_batch(inputs, settings);
  shape.push_back(q.shape(-3));
  shape.push_back(q.shape(-2));
  auto lse = mx::full(shape, -std::numeric_limits<float>::infinity(), mx::float32, s);
  if (settings.has(kSinks)) {
    auto sinks = mx::astype(inputs[settings.at(kSinks)], mx::float32, s);
    lse = mx::broadcast_to(mx::expand_dims(sinks, -1, s), shape, s);
  }
  shape.push_back(v.shape(-1));
  return {mx::zeros(shape, q.dtype(), s), lse};
}

}  // namespace

std::vector<mx::array> attention_graph(const std::vector<mx::array>& inputs,
                                       const AttentionSettings& settings, mx::Stream s) {
  auto batch = attention_batch(inputs, settings);
  bool rows = inputs[0].shape(-3) != 0 && inputs[0].shape(-2) != 0;
  for (int n : batch) rows = rows && n != 0;
  if (!rows || inputs[1].shape(-2) == 0) return without_scores(inputs, settings, s);
  return Graph(inputs, settings, s).outputs();
}

}  // namespace mto
