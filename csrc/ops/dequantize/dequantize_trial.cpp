#include "metal/trial.h"
#include "ops/dequantize/dequantize.h"

namespace mto {

std::shared_ptr<mx::Primitive> Dequantize::on(mx::Stream stream) const {
  return std::make_shared<Dequantize>(stream, group_size_, bits_, dtype_);
}

std::vector<metal::TrialShapes> Dequantize::trial_shapes(const std::vector<mx::array>&,
                                                         metal::TrialSize size) const {
  auto of = [&](int rows, int cols) {
    mx::Shape groups{rows, cols / group_size_};
    return metal::TrialShapes{{rows, cols / 32 * bits_}, groups, groups};
  };
  return {size == metal::TrialSize::kSmall ? of(7, 3 * group_size_) : of(1024, 2048)};
}

// A value is one fma and one rounding.
std::vector<mx::array> Dequantize::trial_inputs(const metal::TrialShapes& shapes,
                                                const std::vector<mx::array>& inputs) const {
  return {metal::trial_words(shapes[0], 1), metal::trial_normal(shapes[1], inputs[1].dtype(), 2),
          metal::trial_normal(shapes[2], inputs[2].dtype(), 3)};
}

}  // namespace mto
