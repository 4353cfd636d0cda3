#include "metal/trial.h"
#include "ops/quantize/quantize.h"

namespace mto {

std::shared_ptr<mx::Primitive> Quantize::on(mx::Stream stream) const {
  return std::make_shared<Quantize>(stream, group_size_, bits_);
}

std::vector<metal::TrialShapes> Quantize::trial_shapes(const std::vector<mx::array>&,
                                                       metal::TrialSize size) const {
  if (size == metal::TrialSize::kSmall) return {{{7, 3 * group_size_}}};
  return {{{1024, 2048}}};
}

// The rule has one rounding a step, so that values of any kind have one right code.
std::vector<mx::array> Quantize::trial_inputs(const metal::TrialShapes& shapes,
                                              const std::vector<mx::array>& inputs) const {
  return {metal::trial_normal(shapes[0], inputs[0].dtype(), 1)};
}

}  // namespace mto
