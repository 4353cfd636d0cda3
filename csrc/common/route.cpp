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

// Why our kernel does not run the call; empty where it does.
std::string reason_against(const Choice& choice, std::string_view route) {
  if (route == "mlx") return "route mlx";
  if (!choice.unsupported.empty() || backend_of(choice.stream) != "metal") {
    return choice.unsupported;
  }
  auto reason = metal::unfit(*metal::device_of(choice.stream));
  if (!reason.empty()) return reason;
  bool chosen = route == "ours" || choice.force_fused;
  return chosen || !choice.mlx_has_kernel ? "" : "route auto: MLX has a kernel";
}

}  // namespace

bool takes_call(const Call& call) {
  auto reason = unsupported(backend_of(call.stream), call.format, call.dtypes);
  return takes_call(
      {call.op, call.stream, reason, mlx_has_kernel(call), call.route, call.force_fused});
}

bool takes_call(const Choice& choice) {
  auto route = choice.route.value_or("auto");
  if (route != "auto" && route != "ours" && route != "mlx") {
    fail(choice.op, "route", "be \"ours\", \"mlx\" or \"auto\"", "\"" + route + "\"");
  }
  if (route == "mlx" && choice.force_fused) {
    fail(choice.op, "route", "be \"ours\" or \"auto\" where force_fused is set", "\"mlx\"");
  }
  auto reason = reason_against(choice, route);
  if (reason.empty()) return true;
  if (choice.force_fused) {
    fail(choice.op, "force_fused", "be False where no kernel of this package covers the call",
         reason);
  }
  count(choice.op, backend_of(choice.stream), reason);
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
