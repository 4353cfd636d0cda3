#include "common/counters.h"
#include "formats/affine.h"
#include "metal/instance.h"
#include "ops/dequantize/dequantize.h"

namespace mto {
void Dequantize::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
  std::vector<mx::array> outputs{out};
  eval_metal(*metal::gpu_encoder(stream()), inputs, outputs);
}

void Dequantize::eval_metal(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
                            std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  encoder.allocate(out);
  if (out.size() == 0) return;
  count("dequantize", "metal", "fused");
  encoder.pipeline(
      {"dequantize", metal::instance("dequantize_affine", inputs[1].dtype(), inputs[2].dtype(),
                                     out.dtype(), bits_, group_size_)});
  for (int i = 0; i < 3; ++i) encoder.input(inputs[i], i);
  encoder.output(out, 3);
  int64_t n_runs = out.size() / kAffineRun;
  encoder.dispatch_each(n_runs, 4);
}

}  // namespace mto
