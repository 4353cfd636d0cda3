#include "common/counters.h"
#include "metal/instance.h"
#include "ops/quantized_scaled_dot_product_attention/quantized_scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal.h"

namespace mto {
namespace {

constexpr const char* kOp = "quantized_scaled_dot_product_attention";

// The type in metal/tile/affine_groups.h of three arrays.
std::string groups_of(const PackedFormat& format, const mx::array* packed) {
  return metal::instance("mto::AffineGroups", format.bits, format.group_size, packed[1].dtype(),
                         packed[2].dtype());
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
  FewQueriesKernel kernel{kOp,
                          std::string(metal::type_name(inputs[0].dtype())) + ", " +
                              groups_of(formats_[0], &inputs[1]) + ", " +
                              groups_of(formats_[1], &inputs[1 + kParts]),
                          key_bytes};
  launch_few_queries(encoder, binding, settings_, kernel, outputs);
}

}  // namespace mto
