#include "metal/trial.h"
#include "ops/quantized_scaled_dot_product_attention/quantized_scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_trial_values.h"

namespace mto {
namespace {

// Decoded, keys and values are whole numbers of at most 8 bits. Values are positive, so that
// nothing becomes -0.
std::vector<mx::array> affine_trial(const PackedFormat& format, const mx::Shape* shapes,
                                    const mx::array* packed, bool values) {
  int top = (1 << format.bits) - 1, low = values ? 0 : -top;
  int high = values && format.bits < 8 ? top : 0;
  return {metal::trial_words(shapes[0], 2 + values),
          metal::trial_integers(1, 1, shapes[1], packed[1].dtype(), 4),
          metal::trial_integers(low, high, shapes[2], packed[2].dtype(), 5 + values)};
}

// Codes of 8 bits are +-1.0 to 1.875, which a scale of 8 makes whole; those of 4 bits are halves.
std::vector<mx::array> coded_trial(const PackedFormat& format, const mx::Shape* shapes,
                                   bool values) {
  auto s = metal::trial_stream();
  bool wide = format.bits == 8;
  auto words = metal::trial_words(shapes[0], 2 + values);
  if (wide) words = mx::bitwise_and(words, mx::array(0x87878787u), s);
  if (wide) words = mx::bitwise_or(words, mx::array(0x38383838u), s);
  if (values) words = mx::bitwise_and(words, mx::array(wide ? 0x7f7f7f7fu : 0x77777777u), s);
  int scale = format.mode == "nvfp4" ? 0x40 : wide ? 130 : 128;
  auto scales = mx::full(shapes[1], mx::array(scale, mx::uint8), s);
  return {words, scales, scales};
}

}  // namespace

std::shared_ptr<mx::Primitive> QuantizedScaledDotProductAttention::on(mx::Stream stream) const {
  return std::make_shared<QuantizedScaledDotProductAttention>(stream, exact_settings(settings_),
                                                              formats_[0], formats_[1]);
}

std::vector<metal::TrialShapes> QuantizedScaledDotProductAttention::trial_shapes(
    const std::vector<mx::array>& inputs, metal::TrialSize size) const {
  std::vector<metal::TrialShapes> out;
  for (const auto& dense : attention_trial_shapes(with_part(inputs, 0), settings_, size)) {
    metal::TrialShapes shapes{dense[0]};
    for (int i = 0; i < 2; ++i) {
      for (int part = 0; part < kParts; ++part) {
        auto shape = dense[1 + i];
        shape.back() = inputs[1 + i * kParts + part].shape(-1);
        shapes.push_back(shape);
      }
    }
    shapes.insert(shapes.end(), dense.begin() + 3, dense.end());
    out.push_back(std::move(shapes));
  }
  return out;
}

std::vector<mx::array> QuantizedScaledDotProductAttention::trial_inputs(
    const metal::TrialShapes& shapes, const std::vector<mx::array>& inputs) const {
  std::vector<mx::array> out{trial_queries(shapes[0], inputs[0].dtype())};
  for (int i = 0; i < 2; ++i) {
    int at = 1 + i * kParts;
    auto packed = formats_[i].affine() ? affine_trial(formats_[i], &shapes[at], &inputs[at], i == 1)
                                       : coded_trial(formats_[i], &shapes[at], i == 1);
    out.insert(out.end(), packed.begin(), packed.end());
  }
  auto options = attention_trial_options(shapes, inputs, settings_);
  out.insert(out.end(), options.begin(), options.end());
  return out;
}

}  // namespace mto
