#include <mlx/backend/cpu/encoder.h>

#include <memory>

#include "common/counters.h"
#include "common/route.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_launch.h"

namespace mto {

void ScaledDotProductAttention::eval_cpu(const std::vector<mx::array>& inputs,
                                         std::vector<mx::array>& outputs) {
  if (eval_emulated(*this, stream(), inputs, outputs)) return;
  count("scaled_dot_product_attention", "cpu", "fused");
  auto launch =
      std::make_shared<AttentionLaunch>("scaled_dot_product_attention", inputs, settings_,
                                        attention_batch(inputs, settings_), outputs, stream());
  launch->take_workspace(attention_workspace(launch->params.forward));
  mx::cpu::get_command_encoder(stream()).dispatch([launch] {
    if (launch->load()) launch->forward();
  });
}

void ScaledDotProductAttentionVJP::eval_cpu(const std::vector<mx::array>& inputs,
                                            std::vector<mx::array>& outputs) {
  if (eval_emulated(*this, stream(), inputs, outputs)) return;
  count("scaled_dot_product_attention_vjp", "cpu", "fused");
  auto batch = attention_batch(inputs, settings_);
  auto launch = std::make_shared<AttentionLaunch>("scaled_dot_product_attention", inputs, settings_,
                                                  batch, outputs, stream());
  auto& params = launch->params;
  int n = settings_.n_inputs();
  launch->operands.bind(params.out, inputs[n], "hij");
  launch->operands.bind(params.lse, inputs[n + 1], "hi");
  launch->operands.bind(params.d_out, inputs[n + 2], "hij");
  launch->operands.bind(params.d_lse, inputs[n + 3], "hi");
  params.grad_type = *float_type(outputs[0].dtype());
  if (wants_alibi_) params.d_alibi = outputs.back().data<float>();
  if (wants_mask_) launch->bind_mask_grad(outputs[3], batch);
  launch->take_workspace(attention_grad_workspace(params));
  mx::cpu::get_command_encoder(stream()).dispatch([launch] {
    if (launch->load()) launch->backward();
  });
}

}  // namespace mto
