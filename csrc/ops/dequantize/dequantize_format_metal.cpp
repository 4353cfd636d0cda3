#include "common/counters.h"
#include "formats/affine.h"
#include "metal/format_binding.h"
#include "ops/dequantize/dequantize_format.h"

namespace mto {

void DequantizeFormat::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
  std::vector<mx::array> outputs{out};
  eval_metal(*metal::gpu_encoder(stream()), inputs, outputs);
}

void DequantizeFormat::eval_metal(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
                                  std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  encoder.allocate(out);
  if (out.size() == 0) return;
  count("dequantize", "metal", "fused");
  encoder.pipeline(
      metal::format_kernel("dequantize_format", "dequantize_format", call_, inputs, out.dtype()));
  metal::bind_packed(encoder, call_, inputs);
  auto table = metal::format_table({out.shape().begin(), out.shape().end() - 2}, {}, inputs);
  encoder.bytes(table.data.data(), table.data.size() * sizeof(int64_t), 4);
  encoder.value(table.n_dims, 5);
  encoder.output(out, 6);
  int64_t n_runs = out.size() / out.shape(-1) * ceil_div(out.shape(-1), kAffineRun);
  encoder.dispatch_each(n_runs, 7);
}

}  // namespace mto
