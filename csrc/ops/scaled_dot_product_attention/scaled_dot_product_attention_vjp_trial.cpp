#include "metal/trial.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

namespace mto {

std::shared_ptr<mx::Primitive> ScaledDotProductAttentionVJP::on(mx::Stream stream) const {
  return std::make_shared<ScaledDotProductAttentionVJP>(stream, settings_, wants_mask_,
                                                        wants_alibi_);
}

std::vector<metal::TrialShapes> ScaledDotProductAttentionVJP::trial_shapes(
    const std::vector<mx::array>&, metal::TrialSize) const {
  return {};
}

std::vector<mx::array> ScaledDotProductAttentionVJP::trial_inputs(
    const metal::TrialShapes&, const std::vector<mx::array>& inputs) const {
  return inputs;
}

}  // namespace mto
