#include "ops/quantize/quantize.h"

#include <algorithm>

#include "common/route.h"
#include "common/transforms.h"
#include "ops/quantize/quantize_format.h"

namespace mto {
namespace {

constexpr const char* kOp = "quantize";

std::vector<mx::array> make(const mx::array& w, int group_size, int bits, mx::Stream stream,
                            bool force_fused = false) {
  auto primitive = std::make_shared<Quantize>(stream, group_size, bits);
  auto inputs = kernel_inputs({w}, stream);
  auto shapes = primitive->output_shapes(inputs);
  auto outputs =
      mx::array::make_arrays(shapes, {mx::uint32, w.dtype(), w.dtype()}, primitive, inputs);
  if (may_run(kOp, outputs[0], force_fused)) return outputs;
  return mx::quantize(w, group_size, bits, "affine", std::nullopt, stream);
}

void check_affine_values(const mx::array& w, int group_size) {
  if (!mx::issubdtype(w.dtype(), mx::floating)) {
    fail(kOp, "w", "be of a real floating type", to_string(w.dtype()));
  }
  if (w.ndim() < 2) fail(kOp, "w", "have at least 2 dimensions", "shape " + to_string(w.shape()));
  if (w.shape(-1) % std::max(32, group_size) != 0) {
    fail(kOp, "w",
         "have a last dimension divisible by group_size " + std::to_string(group_size) +
             (group_size < 32 ? " and by 32" : ""),
         "shape " + to_string(w.shape()));
  }
}

void check_has_encoder(const FormatCall& call) {
  if (call.row->coding != kNoCoding) return;
  std::string known;
  for (const auto* row : all_formats()) {
    if (row->coding != kNoCoding) known += (known.empty() ? "" : ", ") + std::string(row->name);
  }
  fail(kOp, "mode", "be one with an encoder (" + known + ")",
       "\"" + std::string(call.row->name) + "\"");
}

}  // namespace

std::string unsupported_quantize(std::string_view backend, const FormatCall& call,
                                 const NamedDtypes& dtypes) {
  if (call.row->coding == kNoCoding) return "no encoder of mode " + std::string(call.row->name);
  if (backend == "metal" && !call.affine())
    return "no Metal encoder of mode " + std::string(call.row->name);
  return unsupported(backend, call, dtypes);
}

std::vector<mx::array> quantize(const mx::array& w, const std::optional<GroupSize>& group_size,
                                std::optional<int> bits, const std::string& mode,
                                const std::optional<mx::array>& global_scale,
                                const std::optional<std::string>& route, bool force_fused,
                                mx::StreamOrDevice s) {
  auto stream = mx::to_stream(s);
  auto call = check_format_call(kOp, mode, group_size, bits);
  check_has_encoder(call);
  std::vector<mx::array> inputs{w};
  if (call.affine()) {
    check_affine_values(w, call.group_cols);
  } else {
    check_encoded(call, w);
  }
  if (global_scale) {
    if (call.row->third != Third::kGlobalScale) {
      fail(kOp, "global_scale", "be None in mode \"" + mode + "\"", "an array");
    }
    if (global_scale->size() != 1) {
      fail(kOp, "global_scale", "be one number", "shape " + to_string(global_scale->shape()));
    }
    inputs.push_back(mx::astype(mx::reshape(*global_scale, {1}, stream), mx::float32, stream));
  }
  auto place = place_of(stream);
  NamedDtypes dtypes{{"w", w.dtype()}};
  auto coverage = coverage_of(place, call, dtypes);
  coverage.unsupported = unsupported_quantize(place.backend, call, dtypes);
  if (takes_call({kOp, place, coverage, route, force_fused})) {
    if (!call.affine()) return QuantizeFormat(stream, call).apply(inputs);
    return make(w, call.group_cols, call.bits, stream, force_fused);
  }
  check_known_to_mlx(kOp, call);
  return mx::quantize(w, call.group_cols, call.bits, mode, global_scale, stream);
}

std::vector<mx::Shape> Quantize::output_shapes(const std::vector<mx::array>& inputs) {
  auto packed = inputs[0].shape(), groups = packed;
  packed.back() = static_cast<int>(int64_t{packed.back()} * bits_ / 32);
  groups.back() /= group_size_;
  return {packed, groups, groups};
}

bool Quantize::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const Quantize&>(other);
  return group_size_ == o.group_size_ && bits_ == o.bits_;
}

// Codes are piecewise constant, so scale and bias depend on w through the extremes of a group
// alone: scale = edge / code of the edge, bias = edge. Equal extremes share.
std::pair<mx::array, mx::array> Quantize::jacobians(const mx::array& w) {
  auto s = stream();
  auto groups = mx::stop_gradient(split_groups(mx::astype(w, mx::float32, s), group_size_, s), s);
  auto high = mx::max(groups, -1, true, s), low = mx::min(groups, -1, true, s);
  auto share = [&](const mx::array& extreme) {
    auto hit = mx::astype(mx::equal(groups, extreme, s), mx::float32, s);
    return mx::divide(hit, mx::sum(hit, -1, true, s), s);
  };
  auto of_high = share(high), of_low = share(low);
  auto zero = mx::array(0.0f), floor = mx::array(1e-7f);
  auto spread = mx::divide(mx::subtract(high, low, s), mx::array(float((1 << bits_) - 1)), s);
  if (bits_ == 1) {
    auto live = mx::greater_equal(spread, floor, s);
    return {mx::where(live, mx::subtract(of_high, of_low, s), zero, s), of_low};
  }
  auto negative = mx::greater(mx::abs(low, s), mx::abs(high, s), s);
  auto edge = mx::where(negative, low, high, s);
  auto size = mx::maximum(spread, floor, s);
  auto code =
      mx::round(mx::divide(edge, mx::where(negative, size, mx::negative(size, s), s), s), s);
  auto live = mx::not_equal(code, zero, s);
  auto of_edge = mx::where(live, mx::where(negative, of_low, of_high, s), zero, s);
  return {mx::divide(of_edge, mx::where(live, code, mx::array(1.0f), s), s), of_edge};
}

std::vector<mx::array> Quantize::jvp(const std::vector<mx::array>& primals,
                                     const std::vector<mx::array>& tangents,
                                     const std::vector<int>&) {
  auto s = stream();
  const auto& w = primals[0];
  auto tangent = split_groups(mx::astype(tangents[0], mx::float32, s), group_size_, s);
  auto [of_scale, of_bias] = jacobians(w);
  auto along = [&](const mx::array& jacobian) {
    return mx::astype(mx::sum(mx::multiply(jacobian, tangent, s), -1, false, s), w.dtype(), s);
  };
  return {mx::zeros(output_shapes(primals)[0], mx::uint32, s), along(of_scale), along(of_bias)};
}

std::vector<mx::array> Quantize::vjp(const std::vector<mx::array>& primals,
                                     const std::vector<mx::array>& cotangents,
                                     const std::vector<int>&,
                                     const std::vector<mx::array>& outputs) {
  auto s = stream();
  auto [of_scale, of_bias] = jacobians(primals[0]);
  auto term = [&](const mx::array& jacobian, int output) {
    auto cotangent = as_cotangent(kOp, cotangents[output], outputs[output], s);
    auto of_group = mx::expand_dims(mx::astype(cotangent, mx::float32, s), -1, s);
    return mx::multiply(jacobian, of_group, s);
  };
  auto grad = mx::add(term(of_scale, 1), term(of_bias, 2), s);
  return {mx::astype(mx::flatten(grad, -2, -1, s), primals[0].dtype(), s)};
}

std::pair<std::vector<mx::array>, std::vector<int>> Quantize::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto w = mx::moveaxis(inputs[0], axes[0], 0, stream());
  return {make(w, group_size_, bits_, stream()), {0, 0, 0}};
}

}  // namespace mto
