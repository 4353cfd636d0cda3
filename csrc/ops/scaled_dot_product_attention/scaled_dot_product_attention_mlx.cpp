#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_mlx.h"

#include <algorithm>
#include <limits>

namespace mto {
namespace {

using enum AttentionInput;

// Of up to so many queries MLX takes its vector kernels, for so many rows of a KV head.
constexpr int kVectorQueries = 8, kVectorRows = 32;
// Heads of 256 dimensions: from so many queries on.
constexpr int kWideQueries = 2048;

bool is_one_of(int d, int d_v, std::initializer_list<std::pair<int, int>> pairs) {
  return std::find(pairs.begin(), pairs.end(), std::pair{d, d_v}) != pairs.end();
}

}  // namespace

bool mlx_takes_attention(const AttentionCall& call, const AttentionOptions& options) {
  const auto& settings = call.settings;
  const auto &q = call.inputs[0], &k = call.inputs[1];
  bool windowed = settings.window_left != kNoLimit || settings.window_right > 0;
  bool beyond = options.alibi || options.segment_ids || options.cu_seqlens || options.block_mask;
  if (settings.softcap > 0 || windowed || beyond || options.return_lse) return false;
  bool causal = settings.window_right == 0;
  if (k.shape(2) == 0 || (causal && (q.shape(2) > k.shape(2) || settings.has(kMask)))) return false;
  auto promotes = [&](const mx::array& a) {
    return mx::promote_types(a.dtype(), q.dtype()) == q.dtype();
  };
  if (options.sinks && !promotes(*options.sinks)) return false;
  return !settings.has(kMask) || promotes(call.inputs[settings.at(kMask)]);
}

// As libmlx.dylib 0.32.4 for macOS 26 decides (read in its code; not run on a Mac), on M5 and on
// earlier GPUs alike.
bool mlx_fuses_attention(const AttentionCall& call) {
  const auto &q = call.inputs[0], &k = call.inputs[1];
  int d = q.shape(3), d_v = call.inputs[2].shape(3), n_q = q.shape(2), n_k = k.shape(2);
  if (n_q <= kVectorQueries) {
    bool few = n_q * (q.shape(1) / std::max(k.shape(1), 1)) <= kVectorRows && n_q <= n_k;
    return few &&
           is_one_of(d, d_v, {{64, 64}, {96, 96}, {128, 128}, {256, 256}, {192, 128}, {96, 64}});
  }
  if (is_one_of(d, d_v, {{64, 64}, {72, 72}, {80, 80}, {96, 96}, {128, 128}, {96, 64}}))
    return true;
  bool square = call.settings.window_right == 0 && n_q == n_k && n_q >= kWideQueries;
  return is_one_of(d, d_v, {{256, 256}}) && square && q.dtype() != mx::float32;
}

mx::array mlx_attention(const AttentionCall& call, const AttentionOptions& options, mx::Stream s) {
  const auto& settings = call.settings;
  auto run = [&](const std::string& mode, const std::optional<mx::array>& mask) {
    return mx::fast::scaled_dot_product_attention(call.inputs[0], call.inputs[1], call.inputs[2],
                                                  settings.scale, mode, mask, options.sinks, false,
                                                  s);
  };
  if (!settings.has(kMask)) return run(settings.window_right == 0 ? "causal" : "", std::nullopt);
  // A row that sees no key gets to see all of them, and its output is dropped.
  const auto& mask = call.inputs[settings.at(kMask)];
  bool additive = mask.dtype() != mx::bool_;
  auto infinity = mx::array(std::numeric_limits<float>::infinity());
  auto visible = additive ? mx::not_equal(mask, mx::negative(infinity, s), s) : mask;
  auto any = mx::any(visible, -1, true, s);
  auto neutral = additive ? mx::array(0, mask.dtype()) : mx::array(true);
  auto out = run("", mx::where(any, mask, neutral, s));
  return mx::where(any, out, mx::array(0, out.dtype()), s);
}

}  // namespace mto
