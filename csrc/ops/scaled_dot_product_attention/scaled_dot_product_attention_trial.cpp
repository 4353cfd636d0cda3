#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_trial_values.h"

namespace mto {

std::shared_ptr<mx::Primitive> ScaledDotProductAttention::on(mx::Stream stream) const {
  return std::make_shared<ScaledDotProductAttention>(stream, exact_settings(settings_));
}

std::vector<metal::TrialShapes> ScaledDotProductAttention::trial_shapes(
    const std::vector<mx::array>& inputs, metal::TrialSize size) const {
  return attention_trial_shapes(inputs, settings_, size);
}

std::vector<mx::array> ScaledDotProductAttention::trial_inputs(
    const metal::TrialShapes& shapes, const std::vector<mx::array>& inputs) const {
  auto dtype = inputs[0].dtype();
  std::vector<mx::array> out{trial_queries(shapes[0], dtype), trial_keys(shapes[1], dtype, 2),
                             trial_values(shapes[2], dtype)};
  auto options = attention_trial_options(shapes, inputs, settings_);
  out.insert(out.end(), options.begin(), options.end());
  return out;
}

}  // namespace mto
