#include "metal/format_trial.h"

#include <algorithm>

#include "common/integers.h"

namespace mto::metal {
namespace {

// Below the exponents of infinities and NaN in any byte of a float that a format may have.
constexpr int kLastFiniteByte = 0x3b;
constexpr int kPowerOfOne = 127;

int rounded_up(int n, int unit) { return static_cast<int>(ceil_div(n, unit) * unit); }

}  // namespace

TrialShapes trial_packed_shapes(const FormatCall& call, const std::vector<mx::array>& packed,
                                int rows, int cols) {
  const auto& row = *call.row;
  bool whole_groups = row.third == Third::kBiases || row.layout == Layout::kHighFirst;
  int unit = std::max(row.block, whole_groups ? call.group_cols : row.words ? 32 : 4);
  cols = rounded_up(cols, unit);
  rows = row.layout == Layout::kQuarters ? rounded_up(rows, 4) : rows;
  mx::Shape w{rows, cols};
  if (row.layout == Layout::kQuarters) {
    w[0] = rows / 4;
  } else if (row.bits) {
    w[1] = static_cast<int>(int64_t{cols} * call.bits / (row.words ? 32 : 8));
  } else {
    w[1] = cols / row.block * row.block_bytes;
  }
  TrialShapes shapes{w};
  if (packed.size() > 1) {
    bool one = packed[1].shape(-1) == 1 && packed[1].shape(-2) == 1;
    shapes.push_back(
        one ? mx::Shape{1, 1}
            : mx::Shape{n_groups(rows, call.group_rows), n_groups(cols, call.group_cols)});
  }
  if (packed.size() > 2) shapes.push_back(call.affine() ? shapes[1] : mx::Shape{1, 1});
  return shapes;
}

std::vector<mx::array> trial_packed(const FormatCall& call, const std::vector<mx::array>& packed,
                                    const TrialShapes& shapes) {
  std::vector<mx::array> arrays;
  if (call.row->words && call.row->bits < 8) {
    arrays.push_back(trial_words(shapes[0], 1));
  } else {
    auto w_shape = shapes[0];
    if (call.row->words) w_shape.back() *= 4;
    auto bytes = trial_integers(0, kLastFiniteByte, w_shape, mx::uint8, 1);
    arrays.push_back(call.row->words ? mx::view(bytes, mx::uint32, trial_stream()) : bytes);
  }
  for (size_t i = 1; i < packed.size(); ++i) {
    auto dtype = packed[i].dtype();
    bool e8m0 = dtype == mx::uint8 && call.row->scales == Scales::kE8M0;
    int first = e8m0 ? kPowerOfOne - 2 : 1, last = e8m0 ? kPowerOfOne + 2 : kLastFiniteByte;
    arrays.push_back(dtype == mx::uint8 ? trial_integers(first, last, shapes[i], dtype, i + 1)
                                        : trial_normal(shapes[i], dtype, i + 1));
  }
  return arrays;
}

}  // namespace mto::metal
