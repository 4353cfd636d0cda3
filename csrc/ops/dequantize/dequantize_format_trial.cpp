#include "metal/format_trial.h"
#include "ops/dequantize/dequantize_format.h"

namespace mto {

std::shared_ptr<mx::Primitive> DequantizeFormat::on(mx::Stream stream) const {
  return std::make_shared<DequantizeFormat>(stream, call_, dtype_);
}

std::vector<metal::TrialShapes> DequantizeFormat::trial_shapes(const std::vector<mx::array>& inputs,
                                                               metal::TrialSize size) const {
  bool small = size == metal::TrialSize::kSmall;
  return {metal::trial_packed_shapes(call_, inputs, small ? 7 : 1024, small ? 96 : 2048)};
}

// A value is one fma and one rounding.
std::vector<mx::array> DequantizeFormat::trial_inputs(const metal::TrialShapes& shapes,
                                                      const std::vector<mx::array>& inputs) const {
  return metal::trial_packed(call_, inputs, shapes);
}

}  // namespace mto
