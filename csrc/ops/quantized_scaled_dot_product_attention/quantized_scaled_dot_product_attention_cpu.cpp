#include <mlx/backend/cpu/encoder.h>

#include <memory>

#include "common/counters.h"
#include "common/route.h"
#include "ops/quantized_scaled_dot_product_attention/quantized_scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_launch.h"

namespace mto {

void QuantizedScaledDotProductAttention::eval_cpu(const std::vector<mx::array>& inputs,
                                                  std::vector<mx::array>& outputs) {
  if (eval_emulated(*this, stream(), inputs, outputs)) return;
  constexpr const char* kOp = "quantized_scaled_dot_product_attention";
  count(kOp, "cpu", "fused");
  auto launch = std::make_shared<AttentionLaunch>(kOp, with_part(inputs, 0), settings_,
                                                  batch(inputs), outputs, stream());
  auto& p = launch->params.forward;
  p.d_v = outputs[0].shape(-1);
  auto bind = [&](AttentionPacked& packed, int first, const PackedFormat& format) {
    const auto *codes = &inputs[first], *scales = codes + 1, *biases = codes + 2;
    if (format.affine()) {
      launch->bind_packed(packed, *codes, *scales, *biases, format.group_size, format.bits);
    } else {
      launch->bind_coded(packed, *codes, *scales, format.mode, format.group_size, format.bits);
    }
  };
  bind(p.k_packed, 1, formats_[0]);
  bind(p.v_packed, 4, formats_[1]);
  launch->take_workspace(attention_workspace(p));
  mx::cpu::get_command_encoder(stream()).dispatch([launch] {
    if (launch->load()) launch->forward();
  });
}

}  // namespace mto
