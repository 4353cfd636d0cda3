#include "common/counters.h"
#include "metal/instance.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_binding.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_variant.h"

namespace mto {

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
  auto variant = attention_metal_variant(params.n_k, params.d_v);
  auto type = inputs[0].dtype();
  // It concerns products of float32, and weights in registers, which are float32 beside 16-bit
  // values: 11 bits are within what their rounding to 16 bits may cost.
  bool relaxed = settings_.tf32 || type != mx::float32;
  binding.pipeline({"scaled_dot_product_attention",
                    metal::instance("attention_forward", type, variant.rows, variant.keys,
                                    variant.width, variant.registers, relaxed),
                    {}});
  encoder.output(outputs[0], kAttentionOut);
  encoder.output(outputs[1], kAttentionLse);
  // Without values there still are the logsumexps.
  int64_t chunks = std::max<int64_t>(1, ceil_div(params.d_v, variant.width));
  int64_t groups = ceil_div(params.n_q, variant.rows * kAttentionSimdgroups);
  constexpr int64_t kThreads = kAttentionSimdgroups * 32;
  encoder.dispatch({groups * chunks, params.n_heads, params.n_batch}, {kThreads});
}

}  // namespace mto
