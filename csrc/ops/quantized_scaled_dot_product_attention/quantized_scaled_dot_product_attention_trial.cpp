#include "metal/trial.h"
#include "ops/quantized_scaled_dot_product_attention/quantized_scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_trial_values.h"

namespace mto {

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

// Decoded, keys and values are whole numbers: codes, moved by a bias.
std::vector<mx::array> QuantizedScaledDotProductAttention::trial_inputs(
    const metal::TrialShapes& shapes, const std::vector<mx::array>& inputs) const {
  std::vector<mx::array> out{trial_queries(shapes[0], inputs[0].dtype())};
  for (int i = 0; i < 2; ++i) {
    int at = 1 + i * kParts, top = (1 << formats_[i].bits) - 1;
    auto words = metal::trial_words(shapes[at], 2 + i);
    if (!formats_[i].affine()) {
      // Of 8 bits: +-1.0 to 1.875, which a scale of 8 makes whole; of 4 bits: halves, and 2.
      auto s = metal::trial_stream();
      bool wide = formats_[i].bits == 8;
      if (wide) words = mx::bitwise_and(words, mx::array(0x87878787u), s);
      if (wide) words = mx::bitwise_or(words, mx::array(0x38383838u), s);
      int scale = formats_[i].mode == "nvfp4" ? 0x40 : wide ? 130 : 128;
      auto scales = mx::full(shapes[at + 1], mx::array(scale, mx::uint8), s);
      out.insert(out.end(), {words, scales, scales});
      continue;
    }
    out.push_back(words);
    auto ones = metal::trial_integers(1, 1, shapes[at + 1], inputs[at + 1].dtype(), 4);
    out.push_back(ones);
    out.push_back(metal::trial_integers(-top, 0, shapes[at + 2], inputs[at + 2].dtype(), 5 + i));
  }
  auto options = attention_trial_options(shapes, inputs, settings_);
  out.insert(out.end(), options.begin(), options.end());
  return out;
}

}  // namespace mto
