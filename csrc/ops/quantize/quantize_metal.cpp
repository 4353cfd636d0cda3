#include "common/counters.h"
#include "formats/affine.h"
#include "metal/instance.h"
#include "ops/quantize/quantize.h"

namespace mto {
void Quantize::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  eval_metal(*metal::gpu_encoder(stream()), inputs, outputs);
}

void Quantize::eval_metal(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
                          std::vector<mx::array>& outputs) {
  for (auto& out : outputs) encoder.allocate(out);
  const auto& w = inputs[0];
  if (w.size() == 0) return;
  count("quantize", "metal", "fused");
  encoder.pipeline({"quantize", metal::instance("quantize_affine", w.dtype(), bits_, group_size_)});
  encoder.input(w, 0);
  for (int i = 0; i < 3; ++i) encoder.output(outputs[i], i + 1);
  int64_t n_runs = w.size() / kAffineRun;
  encoder.dispatch_each(n_runs, 4);
}

}  // namespace mto
