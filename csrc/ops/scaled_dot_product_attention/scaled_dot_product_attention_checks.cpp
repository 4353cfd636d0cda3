#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_checks.h"

#include <bit>
#include <cmath>
#include <numeric>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_params.h"

namespace mto {
namespace {

using enum AttentionInput;

// Positions and window limits, and their sums, stay below 2^31.
constexpr int64_t kMaxLimit = 1 << 30;

std::string shape_of(const mx::array& a) { return "shape " + to_string(a.shape()); }

int n_blocks(int length, int64_t block) { return static_cast<int>((length + block - 1) / block); }

bool broadcasts_to(const mx::Shape& from, const mx::Shape& to) {
  try {
    return mx::broadcast_shapes(from, to) == to;
  } catch (const std::exception&) {
    return false;
  }
}

// Collects the inputs of a call in the order of AttentionInput.
class Builder {
 public:
  Builder(std::string_view op, const mx::array& q, const mx::array& k, const mx::array& v,
          mx::Stream s)
      : op_(op), stream_(s), dtype_(mx::result_type({q, k, v})) {
    for (const auto& a : {q, k, v}) call_.inputs.push_back(mx::astype(a, dtype_, s));
  }

  AttentionCall build(double scale, const AttentionOptions& options) {
    auto& settings = call_.settings;
    settings.scale = static_cast<float>(scale);
    settings.tf32 = check_precision(op_, options.precision);
    softcap(options);
    window(options);
    mask(options);
    if (options.alibi) per_head(kAlibi, "alibi", *options.alibi);
    if (options.sinks) per_head(kSinks, "sinks", *options.sinks);
    if (options.segment_ids && options.cu_seqlens) {
      fail(op_, "segment_ids", "be None where cu_seqlens is given", "both");
    }
    if (options.segment_ids) segments(*options.segment_ids);
    if (options.cu_seqlens) documents(*options.cu_seqlens);
    block_mask(options);
    return call_;
  }

 private:
  int n_batch() const { return call_.inputs[0].shape(0); }
  int n_heads() const { return call_.inputs[0].shape(1); }
  int n_q() const { return call_.inputs[0].shape(2); }
  int n_k() const { return call_.inputs[1].shape(2); }

  void add(AttentionInput input, const mx::array& a) {
    call_.settings.present |= 1u << static_cast<int>(input);
    call_.inputs.push_back(a);
  }

  // The dtype of what is added to scores.
  mx::Dtype real() const { return dtype_ == mx::float64 ? mx::float64 : mx::float32; }

  void softcap(const AttentionOptions& options) {
    if (!options.softcap) return;
    auto softcap = static_cast<float>(*options.softcap);
    if (!(softcap > 0) || !std::isfinite(softcap)) {
      fail(op_, "softcap", "be positive and finite in float32", number(*options.softcap));
    }
    call_.settings.softcap = softcap;
  }

  int32_t limit(const std::optional<int64_t>& value) const {
    if (!value) return kNoLimit;
    if (*value < 0) fail(op_, "window", "have limits of at least 0", std::to_string(*value));
    return static_cast<int32_t>(std::min(*value, kMaxLimit));
  }

  void window(const AttentionOptions& options) {
    if (!options.window) return;
    auto& settings = call_.settings;
    if (auto* width = std::get_if<int64_t>(&*options.window)) {
      if (*width < 1) fail(op_, "window", "be at least 1", std::to_string(*width));
      settings.window_left = limit(*width - 1);
      settings.window_right = 0;
    } else {
      auto& [left, right] = std::get<1>(*options.window);
      settings.window_left = limit(left);
      settings.window_right = limit(right);
    }
  }

  void mask(const AttentionOptions& options) {
    if (!options.mask) return;
    if (auto* name = std::get_if<std::string>(&*options.mask)) {
      if (*name != "causal") fail(op_, "mask", "be \"causal\" or an array", "\"" + *name + "\"");
      call_.settings.window_right = 0;
      return;
    }
    auto mask = std::get<mx::array>(*options.mask);
    if (mask.dtype() == mx::complex64) fail(op_, "mask", "be real", to_string(mask.dtype()));
    mx::Shape scores{n_batch(), n_heads(), n_q(), n_k()};
    if (mask.ndim() > 4 || !broadcasts_to(mask.shape(), scores)) {
      fail(op_, "mask", "broadcast to [B, Hq, Lq, Lk] " + to_string(scores), shape_of(mask));
    }
    bool kept = mask.dtype() == mx::bool_ || float_type(mask.dtype()) || mask.dtype() == dtype_;
    add(kMask, with_4_dims(kept ? mask : mx::astype(mask, real(), stream_)));
  }

  mx::array with_4_dims(const mx::array& a) const {
    std::vector<int> axes(4 - a.ndim());
    std::iota(axes.begin(), axes.end(), 0);
    return axes.empty() ? a : mx::expand_dims(a, axes, stream_);
  }

  void per_head(AttentionInput input, std::string_view name, const mx::array& a) {
    if (a.dtype() == mx::complex64) fail(op_, name, "be real", to_string(a.dtype()));
    if (a.shape() != mx::Shape{n_heads()}) {
      fail(op_, name, "have one value a query head, shape " + to_string({n_heads()}), shape_of(a));
    }
    add(input, mx::expand_dims(mx::astype(a, real(), stream_), 0, stream_));
  }

  // As int32. Wider values outside of it stay negative or too large.
  mx::array integers(std::string_view name, const mx::array& a) const {
    if (!mx::issubdtype(a.dtype(), mx::integer)) {
      fail(op_, name, "have an integer dtype", to_string(a.dtype()));
    }
    if (a.dtype() == mx::int32) return a;
    if (a.dtype() == mx::int64) {
      return mx::astype(mx::clip(a, mx::array(int64_t{-1}), mx::array(int64_t{kLargest}), stream_),
                        mx::int32, stream_);
    }
    if (a.dtype() == mx::uint32 || a.dtype() == mx::uint64) {
      return mx::astype(mx::minimum(a, mx::array(int{kLargest}, a.dtype()), stream_), mx::int32,
                        stream_);
    }
    return mx::astype(a, mx::int32, stream_);
  }

  std::pair<mx::array, mx::array> each(std::string_view name, const ForEach& ids) const {
    if (auto* one = std::get_if<mx::array>(&ids)) {
      auto both = integers(name, *one);
      return {both, both};
    }
    auto& [q, k] = std::get<1>(ids);
    return {integers(name, q), integers(name, k)};
  }

  void segments(const ForEach& ids) {
    if (std::holds_alternative<mx::array>(ids) && n_q() != n_k()) {
      fail(op_, "segment_ids", "be a pair where Lq and Lk differ",
           "one array with Lq " + std::to_string(n_q()) + " and Lk " + std::to_string(n_k()));
    }
    auto [q, k] = each("segment_ids", ids);
    check_segments("queries", q, n_q());
    check_segments("keys", k, n_k());
    add(kQSegments, q);
    add(kKSegments, k);
  }

  void check_segments(const std::string& of, const mx::array& ids, int length) const {
    mx::Shape expected{n_batch(), length};
    if (ids.shape() == expected) return;
    fail(op_, "segment_ids", "have shape " + to_string(expected) + " for the " + of, shape_of(ids));
  }

  void documents(const ForEach& lengths) {
    if (n_batch() != 1) {
      fail(op_, "q", "have batch size 1 where cu_seqlens is given", shape_of(call_.inputs[0]));
    }
    auto [q, k] = each("cu_seqlens", lengths);
    for (const auto& a : {q, k}) {
      if (a.ndim() != 1 || a.size() == 0) {
        fail(op_, "cu_seqlens", "have shape (n + 1,) for n documents", shape_of(a));
      }
    }
    if (q.shape() != k.shape()) {
      fail(op_, "cu_seqlens", "have as many documents for queries as for keys",
           to_string(q.shape()) + " and " + to_string(k.shape()));
    }
    add(kQDocuments, q);
    add(kKDocuments, k);
  }

  void block_mask(const AttentionOptions& options) {
    if (!options.block_mask) {
      if (options.block_size) fail(op_, "block_size", "be None without block_mask", "a pair");
      return;
    }
    if (!options.block_size) fail(op_, "block_size", "be given with block_mask", "None");
    auto [rows, keys] = *options.block_size;
    for (auto size : {rows, keys}) {
      if (size < 1) fail(op_, "block_size", "be at least 1", std::to_string(size));
    }
    const auto& mask = *options.block_mask;
    if (mask.dtype() != mx::bool_) {
      fail(op_, "block_mask", "have dtype bool", to_string(mask.dtype()));
    }
    mx::Shape blocks{n_batch(), n_heads(), n_blocks(n_q(), rows), n_blocks(n_k(), keys)};
    if (mask.ndim() > 4 || !broadcasts_to(mask.shape(), blocks)) {
      fail(op_, "block_mask", "broadcast to [B, Hq, blocks, blocks] " + to_string(blocks),
           shape_of(mask));
    }
    call_.settings.block_rows = static_cast<int32_t>(std::min(rows, kMaxLimit));
    call_.settings.block_keys = static_cast<int32_t>(std::min(keys, kMaxLimit));
    add(kBlockMask, with_4_dims(mask));
  }

  std::string_view op_;
  mx::Stream stream_;
  mx::Dtype dtype_;
  AttentionCall call_;
};

void check_axis(std::string_view op, std::string_view name, const mx::array& a, int axis,
                std::string_view what, int expected) {
  if (a.shape(axis) == expected) return;
  fail(op, name, "have the " + std::string(what) + " " + std::to_string(expected), shape_of(a));
}

void check_last(std::string_view op, std::string_view name, const mx::array& a,
                const std::vector<int>& lengths) {
  for (size_t i = 0; i < lengths.size(); ++i) {
    int axis = static_cast<int>(i) - static_cast<int>(lengths.size());
    if (a.shape(axis) == lengths[i] || a.shape(axis) == 1) continue;
    fail(op, name,
         "broadcast to the scores' " + to_string(mx::Shape(lengths.begin(), lengths.end())),
         shape_of(a));
  }
}

}  // namespace

int AttentionSettings::at(AttentionInput input) const {
  return 3 + std::popcount(present & ((1u << static_cast<int>(input)) - 1));
}

int AttentionSettings::n_inputs() const { return 3 + std::popcount(present); }

void check_attention_operands(std::string_view op, const mx::array& q, const mx::array& k,
                              const mx::array& v) {
  for (auto& [name, a] : {std::pair<const char*, const mx::array&>{"q", q}, {"k", k}, {"v", v}}) {
    if (a.ndim() != 4) fail(op, name, "have 4 dimensions", shape_of(a));
  }
  auto dtype = mx::result_type({q, k, v});
  if (!mx::issubdtype(dtype, mx::floating)) {
    fail(op, "q, k and v", "have a floating result type", to_string(dtype));
  }
  check_axis(op, "k", k, 0, "batch size of q", q.shape(0));
  check_axis(op, "v", v, 0, "batch size of q", q.shape(0));
  check_axis(op, "k", k, 3, "last dimension of q", q.shape(3));
  check_axis(op, "v", v, 1, "number of heads of k", k.shape(1));
  check_axis(op, "v", v, 2, "number of keys", k.shape(2));
  int n_heads = q.shape(1), n_kv_heads = k.shape(1);
  if (n_kv_heads == 0 ? n_heads != 0 : n_heads % n_kv_heads != 0) {
    fail(op, "q", "have a multiple of the " + std::to_string(n_kv_heads) + " heads of k",
         shape_of(q));
  }
}

AttentionCall canonical_call(std::string_view op, const mx::array& q, const mx::array& k,
                             const mx::array& v, double scale, const AttentionOptions& options,
                             mx::Stream s) {
  return Builder(op, q, k, v, s).build(scale, options);
}

void check_canonical(std::string_view op, const std::vector<mx::array>& inputs,
                     const AttentionSettings& settings) {
  check_axis(op, "k", inputs[1], -1, "last dimension of q", inputs[0].shape(-1));
  check_canonical_lengths(op, inputs, settings);
}

void check_canonical_lengths(std::string_view op, const std::vector<mx::array>& inputs,
                             const AttentionSettings& settings) {
  const auto &q = inputs[0], &k = inputs[1], &v = inputs[2];
  int n_heads = q.shape(-3), n_q = q.shape(-2), n_k = k.shape(-2);
  check_axis(op, "v", v, -2, "number of keys", n_k);
  check_axis(op, "v", v, -3, "number of heads of k", k.shape(-3));
  if (k.shape(-3) != 0 && n_heads % k.shape(-3) != 0) {
    fail(op, "q", "have a multiple of the heads of k " + to_string(k.shape()), shape_of(q));
  }
  auto input = [&](AttentionInput i) -> const mx::array& { return inputs[settings.at(i)]; };
  if (settings.has(kMask)) check_last(op, "mask", input(kMask), {n_heads, n_q, n_k});
  if (settings.has(kQSegments)) {
    check_axis(op, "segment_ids", input(kQSegments), -1, "number of queries", n_q);
    check_axis(op, "segment_ids", input(kKSegments), -1, "number of keys", n_k);
  }
  if (settings.has(kBlockMask)) {
    check_last(op, "block_mask", input(kBlockMask),
               {n_heads, n_blocks(n_q, settings.block_rows), n_blocks(n_k, settings.block_keys)});
  }
}

std::string unsupported_attention(std::string_view backend, mx::Dtype dtype, int d, int d_v) {
  if (backend != "cpu" && backend != "metal")
    return "no kernel for backend " + std::string(backend);
  if (!float_type(dtype)) return "q, k and v of dtype " + to_string(dtype);
  if (std::max(d, d_v) > kMaxHeadDim) {
    return "head dimension " + std::to_string(std::max(d, d_v));
  }
  return "";
}

}  // namespace mto
