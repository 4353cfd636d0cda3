#include "common/route.h"

#include <algorithm>

#include "common/counters.h"

namespace mto {
namespace {

// MLX has kernels for operands of one dtype, and converts where there are several.
bool mlx_has_kernel(const Call& call) {
  return std::all_of(call.dtypes.begin(), call.dtypes.end(),
                     [&](const auto& operand) { return operand.second == call.dtypes[0].second; });
}

// Why MLX's op runs the call; empty where our kernel does.
std::string reason_against(const Call& call, std::string_view route) {
  if (route == "mlx") return "route mlx";
  auto backend = backend_of(call.stream);
  auto reason = unsupported(backend, call.format, call.dtypes);
  if (!reason.empty() || backend != "metal") return reason;
  reason = metal::unfit(*metal::device_of(call.stream));
  if (!reason.empty()) return reason;
  bool chosen = route == "ours" || call.force_fused;
  return chosen || !mlx_has_kernel(call) ? "" : "route auto: MLX has a kernel";
}

}  // namespace

bool takes_call(const Call& call) {
  auto route = call.route.value_or("auto");
  if (route != "auto" && route != "ours" && route != "mlx") {
    fail(call.op, "route", "be \"ours\", \"mlx\" or \"auto\"", "\"" + route + "\"");
  }
  if (route == "mlx" && call.force_fused) {
    fail(call.op, "route", "be \"ours\" or \"auto\" where force_fused is set", "\"mlx\"");
  }
  auto reason = reason_against(call, route);
  if (reason.empty()) return true;
  if (call.force_fused) {
    fail(call.op, "force_fused", "be False where no kernel of this package covers the call",
         reason);
  }
  count(call.op, backend_of(call.stream), reason);
  return false;
}

std::string backend_of(mx::Stream stream) {
  if (metal::device_of(stream)) return "metal";
  return stream.device == mx::Device::gpu ? "gpu" : "cpu";
}

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
