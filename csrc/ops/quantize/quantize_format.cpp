#include "ops/quantize/quantize_format.h"

#include <algorithm>

#include "common/transforms.h"

namespace mto {
namespace {

constexpr const char* kOp = "quantize";

mx::Dtype scales_dtype(const FormatCall& call) {
  return call.row->scales == Scales::kFloat ? mx::float32 : mx::uint8;
}

[[noreturn]] void refuse(const FormatCall& call) {
  fail(kOp, "w", "not be differentiated in mode \"" + std::string(call.row->name) + "\"",
       "it among the differentiated arguments");
}

}  // namespace

void check_encoded(const FormatCall& call, const mx::array& w) {
  const auto& row = *call.row;
  auto in_mode = " in mode \"" + std::string(row.name) + "\"";
  if (!mx::issubdtype(w.dtype(), mx::floating)) {
    fail(kOp, "w", "be of a real floating type", to_string(w.dtype()));
  }
  if (w.ndim() < 2) fail(kOp, "w", "have at least 2 dimensions", "shape " + to_string(w.shape()));
  if (row.layout == Layout::kQuarters) {
    if (w.shape(-2) % 4 != 0) {
      fail(kOp, "w", "have rows divisible by 4" + in_mode, "shape " + to_string(w.shape()));
    }
    return;
  }
  // Whole words and whole groups; fp8's may be ragged.
  int unit = row.words ? std::max(32, call.group_cols) : row.block;
  if (row.layout == Layout::kHighFirst) unit = call.group_cols;
  if (w.shape(-1) % unit != 0) {
    fail(kOp, "w", "have a last dimension divisible by " + std::to_string(unit) + in_mode,
         "shape " + to_string(w.shape()));
  }
}

std::vector<mx::array> QuantizeFormat::apply(const std::vector<mx::array>& inputs) {
  auto primitive = std::make_shared<QuantizeFormat>(stream(), call_);
  auto dtype = call_.row->words ? mx::uint32 : mx::uint8;
  return mx::array::make_arrays(primitive->output_shapes(inputs), {dtype, scales_dtype(call_)},
                                primitive, inputs);
}

std::vector<mx::Shape> QuantizeFormat::output_shapes(const std::vector<mx::array>& inputs) {
  const auto& w = inputs[0];
  check_encoded(call_, w);
  auto packed = w.shape(), scales = packed;
  const auto& row = *call_.row;
  if (row.layout == Layout::kQuarters) {
    packed.end()[-2] /= 4;
    return {packed, {scales.begin(), scales.end() - 2}};
  }
  packed.back() = static_cast<int>(int64_t{packed.back()} * call_.bits / (row.words ? 32 : 8));
  scales.end()[-2] = n_groups(w.shape(-2), call_.group_rows);
  scales.back() = n_groups(w.shape(-1), call_.group_cols);
  if (call_.group_cols == kWholeAxis) scales.pop_back();
  return {packed, scales};
}

bool QuantizeFormat::is_equivalent(const mx::Primitive& other) const {
  return call_ == static_cast<const QuantizeFormat&>(other).call_;
}

// Codes, and scales that are codes, are piecewise constant.
std::vector<mx::array> QuantizeFormat::jvp(const std::vector<mx::array>& primals,
                                           const std::vector<mx::array>&, const std::vector<int>&) {
  if (scales_dtype(call_) != mx::uint8) refuse(call_);
  auto shapes = output_shapes(primals);
  return {mx::zeros(shapes[0], mx::uint32, stream()), mx::zeros(shapes[1], mx::uint8, stream())};
}

std::vector<mx::array> QuantizeFormat::vjp(const std::vector<mx::array>& primals,
                                           const std::vector<mx::array>&,
                                           const std::vector<int>& argnums,
                                           const std::vector<mx::array>&) {
  if (scales_dtype(call_) != mx::uint8) refuse(call_);
  std::vector<mx::array> grads;
  for (int arg : argnums) grads.push_back(zeros_of(primals[arg], primals[arg].dtype(), stream()));
  return grads;
}

std::pair<std::vector<mx::array>, std::vector<int>> QuantizeFormat::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  if (axes.size() > 1 && axes[1] >= 0) {
    fail(kOp, "global_scale", "not be mapped over by vmap", "axis " + std::to_string(axes[1]));
  }
  auto moved = inputs;
  moved[0] = mx::moveaxis(inputs[0], axes[0], 0, stream());
  return {apply(moved), {0, 0}};
}

}  // namespace mto
