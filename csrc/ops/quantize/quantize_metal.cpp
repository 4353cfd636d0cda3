#include "common/counters.h"
#include "ops/quantize/quantize.h"

namespace mto {
namespace {

constexpr int64_t kRun = 8;  // values a thread, as in metal/quantize.metal
constexpr int64_t kThreads = 256;

}  // namespace

void Quantize::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  eval_metal(*metal::gpu_encoder(stream()), inputs, outputs);
}

void Quantize::eval_metal(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
                          std::vector<mx::array>& outputs) {
  for (auto& out : outputs) encoder.allocate(out);
  const auto& w = inputs[0];
  if (w.size() == 0) return;
  count("quantize", "metal", "fused");
  encoder.pipeline({"quantize", std::string("quantize_affine<") + metal::type_name(w.dtype()) +
                                    ", " + std::to_string(bits_) + ", " +
                                    std::to_string(group_size_) + ">"});
  encoder.input(w, 0);
  for (int i = 0; i < 3; ++i) encoder.output(outputs[i], i + 1);
  int64_t n_runs = w.size() / kRun;
  encoder.value(n_runs, 4);
  encoder.dispatch({(n_runs + kThreads - 1) / kThreads}, {kThreads});
}

}  // namespace mto
