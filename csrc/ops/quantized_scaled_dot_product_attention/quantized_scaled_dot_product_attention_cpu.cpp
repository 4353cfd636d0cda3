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
  if (!formats_[0].affine() || !formats_[1].affine()) {
    throw std::runtime_error(
        "[quantized_scaled_dot_product_attention] has no CPU kernel for mode " +
        (formats_[0].affine() ? formats_[1] : formats_[0]).mode + ".");
  }
  count(kOp, "cpu", "fused");
  auto launch = std::make_shared<AttentionLaunch>(kOp, with_part(inputs, 0), settings_,
                                                  batch(inputs), outputs, stream());
  auto& p = launch->params.forward;
  p.d_v = outputs[0].shape(-1);
  auto bind = [&](AttentionPacked& packed, int first, const PackedFormat& format) {
    launch->bind_packed(packed, inputs[first], inputs[first + 1], inputs[first + 2],
                        format.group_size, format.bits);
  };
  bind(p.k_packed, 1, formats_[0]);
  bind(p.v_packed, 4, formats_[1]);
  launch->take_workspace(attention_workspace(p));
  mx::cpu::get_command_encoder(stream()).dispatch([launch] {
    if (launch->load()) launch->forward();
  });
}

}  // namespace mto
