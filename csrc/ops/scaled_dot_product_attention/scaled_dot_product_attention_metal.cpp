#include <algorithm>

#include "common/counters.h"
#include "metal/instance.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_binding.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_variant.h"

namespace mto {
namespace {

constexpr int64_t kLanes = 32;

metal::Kernel kernel_of(const AttentionMetalVariant& variant, mx::Dtype type, bool tf32) {
  // It concerns products of float32, and weights, which are float32 beside 16-bit values, too: 11
  // bits are within what their rounding to 16 bits may cost.
  bool relaxed = tf32 || type != mx::float32;
  const auto& [kind, rows, keys, width, registers, share_q, splits] = variant;
  if (kind == AttentionMetalVariant::kRows) {
    return {"scaled_dot_product_attention",
            metal::instance("attention_forward", type, rows, keys, width, registers, relaxed),
            {}};
  }
  return {
      "scaled_dot_product_attention_wide",
      metal::instance("attention_forward_wide", type, rows, keys, width, splits, share_q, relaxed),
      {}};
}

}  // namespace

void ScaledDotProductAttention::eval_gpu(const std::vector<mx::array>& inputs,
                                         std::vector<mx::array>& outputs) {
  eval_metal(*metal::gpu_encoder(stream()), inputs, outputs);
}

void ScaledDotProductAttention::eval_metal(metal::Encoder& encoder,
                                           const std::vector<mx::array>& inputs,
                                           std::vector<mx::array>& outputs) {
  for (auto& out : outputs) encoder.allocate(out);
  count("scaled_dot_product_attention", "metal", "fused");
  if (outputs[1].size() == 0) return;
  AttentionMetalBinding binding(encoder, inputs, settings_, attention_batch(inputs, settings_));
  const auto& params = binding.params;
  if (are_few_queries(params.n_q, params.n_heads / params.n_kv_heads)) {
    return eval_few_queries(encoder, binding, inputs, settings_, outputs);
  }
  auto type = inputs[0].dtype();
  int64_t item = inputs[0].itemsize();
  auto variant = attention_metal_variant(params.n_k, params.d, params.d_v, item);
  bool wide = variant.kind == AttentionMetalVariant::kWide;
  binding.pipeline(kernel_of(variant, type, settings_.tf32));
  if (outputs[0].size() > 0) {
    encoder.output(outputs[0], kAttentionOut);
  } else {
    encoder.value(int32_t{0}, kAttentionOut);  // there has to be something to bind
  }
  encoder.output(outputs[1], kAttentionLse);
  if (wide) {
    int64_t q_bytes = variant.share_q ? variant.rows * params.d * item : 0;
    encoder.threadgroup_memory(std::max<int64_t>(16, ceil_div(q_bytes, 16) * 16), 0);
  }
  int64_t simdgroups = wide ? variant.splits : kAttentionSimdgroups;
  int64_t rows = wide ? variant.rows : variant.rows * simdgroups;
  encoder.dispatch({ceil_div(params.n_q, rows), params.n_heads, params.n_batch},
                   {simdgroups * kLanes});
}

}  // namespace mto
