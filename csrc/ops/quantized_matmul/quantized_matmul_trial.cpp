#include "metal/trial.h"
#include "ops/quantized_matmul/quantized_matmul.h"

namespace mto {
namespace {

constexpr int kRowsMax = 128;  // by then every kernel was met
constexpr int kUnit = 64;      // values are whole multiples of 1 / kUnit
// Of float32 x without tf32, as many of a row need 13 significant bits.
constexpr int kLongValues = 32;

}  // namespace

std::shared_ptr<mx::Primitive> QuantizedMatmul::on(mx::Stream stream) const {
  return std::make_shared<QuantizedMatmul>(stream, group_size_, bits_, transpose_, tf32_);
}

// Which kernel it is depends on the rows of x foremost: the fewest that do.
std::vector<metal::TrialShapes> QuantizedMatmul::trial_shapes(const std::vector<mx::array>&,
                                                              metal::TrialSize size) const {
  bool small = size == metal::TrialSize::kSmall;
  // Along the packed axis there are whole groups.
  int packed = small ? 3 * group_size_ : transpose_ ? 2048 : 1024;
  std::vector<int> others{1024};
  if (small) others = {37, 32};
  if (!transpose_) others = small ? std::vector{77, 96} : std::vector{2048, 2048 + 13};
  std::vector<metal::TrialShapes> out;
  for (int rows = 1; rows <= kRowsMax; ++rows) {
    for (int other : others) {
      mx::Shape groups{other, packed / group_size_};
      out.push_back(
          {{rows, transpose_ ? packed : other}, {other, packed / 32 * bits_}, groups, groups});
    }
  }
  return out;
}

// Small whole numbers: their products and sums are exact in float32, whatever the order, and
// weights are exact in 16 bits. Where the product must be of full float32, a few values of x do not
// fit the 11 bits of tf32.
std::vector<mx::array> QuantizedMatmul::trial_inputs(const metal::TrialShapes& shapes,
                                                     const std::vector<mx::array>& inputs) const {
  auto s = metal::trial_stream();
  auto x = metal::trial_integers(-8, 8, shapes[0], inputs[0].dtype(), 1);
  if (inputs[0].dtype() == mx::float32 && !tf32_) {
    int step = std::max(1, shapes[0].back() / kLongValues);
    auto at = mx::remainder(mx::arange(shapes[0].back(), mx::int32, s), mx::array(step), s);
    auto longer = mx::add(mx::multiply(x, mx::array(512.0f), s), mx::array(1.0f), s);
    x = mx::where(mx::equal(at, mx::array(0), s), longer, x, s);
  }
  // value = sign * (code - offset) / kUnit, so that |value| <= 255 / kUnit
  auto sign =
      mx::multiply(metal::trial_integers(0, 1, shapes[2], mx::float32, 2), mx::array(2.0f), s);
  sign = mx::divide(mx::subtract(sign, mx::array(1.0f), s), mx::array(float(kUnit)), s);
  auto offset = metal::trial_integers(1 - (1 << bits_), 0, shapes[3], mx::float32, 3);
  return {x, metal::trial_words(shapes[1], 4), mx::astype(sign, inputs[2].dtype(), s),
          mx::astype(mx::multiply(sign, offset, s), inputs[3].dtype(), s)};
}

}  // namespace mto
