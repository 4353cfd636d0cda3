#include <algorithm>

#include "common/counters.h"
#include "formats/formats.h"
#include "metal/instance.h"
#include "ops/quantized_scaled_dot_product_attention/quantized_scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_variant.h"

namespace mto {
namespace {

constexpr const char* kOp = "quantized_scaled_dot_product_attention";

// The type in metal/tile/coded_groups.h of three arrays.
std::string groups_of(const PackedFormat& format, const mx::array* packed) {
  std::string codes, scale, third = "mto::NoThird";
  if (format.affine()) {
    codes = metal::instance("mto::UnsignedCodes", format.bits);
    scale = metal::instance("mto::FloatScale", packed[1].dtype());
    third = metal::instance("mto::Biases", packed[2].dtype());
  } else {
    auto* row = std::find_if(std::begin(kFormats), std::end(kFormats),
                             [&](const FormatRow& row) { return row.name == format.mode; });
    codes = "mto::" + std::string(row->type);
    scale = row->scales == Scales::kE4M3 ? "mto::E4M3Scale" : "mto::E8M0Scale";
  }
  return "mto::CodedGroups<" + codes + ", " + std::to_string(format.group_size) + ", " + scale +
         ", " + third + ">";
}

}  // namespace

void QuantizedScaledDotProductAttention::eval_gpu(const std::vector<mx::array>& inputs,
                                                  std::vector<mx::array>& outputs) {
  eval_metal(*metal::gpu_encoder(stream()), inputs, outputs);
}

void QuantizedScaledDotProductAttention::eval_metal(metal::Encoder& encoder,
                                                    const std::vector<mx::array>& inputs,
                                                    std::vector<mx::array>& outputs) {
  for (auto& out : outputs) encoder.allocate(out);
  count(kOp, "metal", "fused");
  if (outputs[1].size() == 0) return;
  auto dense = with_part(inputs, 0);
  AttentionMetalBinding binding(encoder, dense, settings_, batch(inputs));
  binding.params.d_v = outputs[0].shape(-1);
  int64_t key_bytes = 0;
  for (int part = 0; part < kParts; ++part) {
    constexpr AttentionMetalOperand kKeys[] = {kAttentionK, kAttentionKScales, kAttentionKBiases};
    constexpr AttentionMetalOperand kValues[] = {kAttentionV, kAttentionVScales, kAttentionVBiases};
    binding.add_matrices(kKeys[part], inputs[1 + part]);
    binding.add_matrices(kValues[part], inputs[1 + kParts + part]);
    for (const auto* a : {&inputs[1 + part], &inputs[1 + kParts + part]}) {
      key_bytes += static_cast<int64_t>(a->shape(-1)) * a->itemsize();
    }
  }
  auto types = std::string(metal::type_name(inputs[0].dtype())) + ", " +
               groups_of(formats_[0], &inputs[1]) + ", " +
               groups_of(formats_[1], &inputs[1 + kParts]);
  const auto& p = binding.params;
  // Tiles are of 32 columns.
  bool whole = p.d % 32 == 0 && p.d_v % 32 == 0;
  if (!whole || are_few_queries(p.n_q, p.n_heads / p.n_kv_heads)) {
    FewQueriesKernel kernel{std::string(kOp) + "_few_queries", types, key_bytes};
    return launch_few_queries(encoder, binding, settings_, kernel, outputs);
  }
  // It concerns products of float32, and weights, which are float32 beside 16-bit values, too.
  bool relaxed = settings_.tf32 || inputs[0].dtype() != mx::float32;
  // Columns beyond a simdgroup's are other simdgroups', each with the scores again.
  int width = attention_width(p.d_v);
  auto function = std::string(kOp) + "<" + types + ", " + std::to_string(width) + ", " +
                  metal::argument_text(relaxed) + ">";
  binding.pipeline({kOp, function, {}});
  encoder.output(outputs[0], kAttentionOut);
  encoder.output(outputs[1], kAttentionLse);
  constexpr int64_t kThreads = kAttentionSimdgroups * 32;
  int64_t groups = ceil_div(p.n_q, int64_t{kAttentionTileRows} * kAttentionSimdgroups);
  encoder.dispatch({groups * ceil_div(p.d_v, width), p.n_heads, p.n_batch}, {kThreads});
}

}  // namespace mto
