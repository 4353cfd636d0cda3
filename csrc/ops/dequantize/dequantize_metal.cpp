#include "common/counters.h"
#include "ops/dequantize/dequantize.h"

namespace mto {
namespace {

constexpr int64_t kRun = 8;  // values a thread, as in metal/dequantize.metal
constexpr int64_t kThreads = 256;

}  // namespace

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
  std::string types;
  for (auto dtype : {inputs[1].dtype(), inputs[2].dtype(), out.dtype()}) {
    types += std::string(metal::type_name(dtype)) + ", ";
  }
  encoder.pipeline({"dequantize", "dequantize_affine<" + types + std::to_string(bits_) + ", " +
                                      std::to_string(group_size_) + ">"});
  for (int i = 0; i < 3; ++i) encoder.input(inputs[i], i);
  encoder.output(out, 3);
  int64_t n_runs = out.size() / kRun;
  encoder.value(n_runs, 4);
  encoder.dispatch({(n_runs + kThreads - 1) / kThreads}, {kThreads});
}

}  // namespace mto
