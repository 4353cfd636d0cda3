#include "common/route.h"

#include <algorithm>

#include "common/counters.h"
#include "metal/verification.h"

namespace mto {
namespace {

thread_local std::string last;

// MLX's op runs the call, if it may.
bool give_away(std::string_view op, std::string_view backend, const std::string& reason,
               bool force_fused) {
  last = reason;
  if (reason.empty()) return false;
  if (force_fused) {
    fail(op, "force_fused", "be False where no kernel of this package covers the call", reason);
  }
  count(op, backend, reason);
  return true;
}

// MLX has kernels for operands of one dtype, and converts where there are several.
bool one_dtype(const NamedDtypes& dtypes) {
  return std::all_of(dtypes.begin(), dtypes.end(),
                     [&](const auto& operand) { return operand.second == dtypes[0].second; });
}

}  // namespace

Place place_of(mx::Stream stream) {
  if (auto device = metal::device_of(stream)) return {"metal", metal::unfit(*device)};
  return {stream.device == mx::Device::gpu ? "gpu" : "cpu", ""};
}

Coverage coverage_of(const Place& place, const Format& format, const NamedDtypes& dtypes) {
  return {unsupported(place.backend, format, dtypes), one_dtype(dtypes)};
}

Coverage coverage_of(const Place& place, const FormatCall& call, const NamedDtypes& dtypes) {
  return {unsupported(place.backend, call, dtypes), known_to_mlx(call) && one_dtype(dtypes)};
}

std::string reason_against(const Place& place, const Coverage& coverage, std::string_view route,
                           bool chosen) {
  if (route == "mlx") return "route mlx";
  if (!coverage.unsupported.empty()) return coverage.unsupported;
  if (!place.unfit.empty()) return place.unfit;
  if (place.backend != "metal" || chosen || route == "ours") return "";
  return coverage.mlx_has_kernel ? "route auto: MLX has a kernel" : "";
}

void check_route(std::string_view op, std::string_view route) {
  if (route != "auto" && route != "ours" && route != "mlx") {
    fail(op, "route", "be \"ours\", \"mlx\" or \"auto\"", "\"" + std::string(route) + "\"");
  }
}

bool takes_call(const Call& call) {
  auto route = call.route.value_or("auto");
  check_route(call.op, route);
  if (route == "mlx" && call.force_fused) {
    fail(call.op, "route", "be \"ours\" or \"auto\" where force_fused is set", "\"mlx\"");
  }
  auto reason = reason_against(call.place, call.coverage, route, call.force_fused);
  return !give_away(call.op, call.place.backend, reason, call.force_fused);
}

bool may_run(std::string_view op, const mx::array& a, bool force_fused) {
  return !give_away(op, "metal", metal::distrust(a), force_fused);
}

const std::string& last_reason() { return last; }

std::vector<mx::array> kernel_inputs(std::vector<mx::array> inputs, mx::Stream stream) {
  if (!metal::device_of(stream)) return inputs;
  for (auto& input : inputs) input = mx::contiguous(input, false, stream);
  return inputs;
}

bool eval_emulated(metal::MetalPrimitive& primitive, mx::Stream stream,
                   const std::vector<mx::array>& inputs, std::vector<mx::array> outputs) {
  auto encoder = metal::emulated_encoder(stream);
  if (encoder) primitive.eval_metal(*encoder, inputs, outputs);
  return encoder != nullptr;
}

}  // namespace mto
