#include "metal/format_trial.h"
#include "ops/quantized_matmul/quantized_matmul_format.h"

namespace mto {
namespace {

constexpr int kRowsMax = 128;  // by then every kernel was met

}  // namespace

std::shared_ptr<mx::Primitive> QuantizedMatmulFormat::on(mx::Stream stream) const {
  return std::make_shared<QuantizedMatmulFormat>(stream, call_, transpose_, tf32_);
}

// As QuantizedMatmul::trial_shapes.
std::vector<metal::TrialShapes> QuantizedMatmulFormat::trial_shapes(
    const std::vector<mx::array>& inputs, metal::TrialSize size) const {
  bool small = size == metal::TrialSize::kSmall;
  std::vector<mx::array> packed(inputs.begin() + 1, inputs.end());
  std::vector<int> all_rows{small ? 36 : 1024};
  if (!transpose_) all_rows = small ? std::vector{76, 96} : std::vector{2048, 2048 + 12};
  std::vector<metal::TrialShapes> out;
  for (int m = 1; m <= kRowsMax; ++m) {
    for (int rows : all_rows) {
      auto shapes = metal::trial_packed_shapes(call_, packed, rows, small ? 96 : 2048);
      auto w = mx::array(shapes[0], packed[0].dtype(), nullptr, {});
      auto [n_rows, n_cols] = decoded_shape(call_, w);
      shapes.insert(shapes.begin(), mx::Shape{m, transpose_ ? n_cols : n_rows});
      out.push_back(shapes);
    }
  }
  return out;
}

// Rows of x with a single value, a power of two: every order of a sum gives the same bits.
std::vector<mx::array> QuantizedMatmulFormat::trial_inputs(
    const metal::TrialShapes& shapes, const std::vector<mx::array>& inputs) const {
  auto s = metal::trial_stream();
  auto column = mx::arange(shapes[0][1], mx::int32, s);
  auto place = metal::trial_integers(0, shapes[0][1] - 1, {shapes[0][0], 1}, mx::int32, 5);
  auto x =
      mx::multiply(mx::astype(mx::equal(column, place, s), mx::float32, s), mx::array(2.0f), s);
  std::vector<mx::array> packed(inputs.begin() + 1, inputs.end());
  auto arrays = metal::trial_packed(call_, packed, {shapes.begin() + 1, shapes.end()});
  arrays.insert(arrays.begin(), mx::astype(x, inputs[0].dtype(), s));
  return arrays;
}

}  // namespace mto
