#pragma once

#include "common/format_call.h"
#include "metal/encoder.h"

namespace mto {

mx::array quantized_matmul(const mx::array& x, const mx::array& w,
                           const std::optional<mx::array>& scales,
                           const std::optional<mx::array>& biases, bool transpose,
                           const std::optional<GroupSize>& group_size, std::optional<int> bits,
                           const std::string& mode, const std::optional<mx::array>& global_scale,
                           const std::optional<std::string>& precision,
                           const std::optional<std::string>& route, bool force_fused,
                           mx::StreamOrDevice s);

// Inputs x, w, scales, biases; x and w have at least 2 dimensions, leading ones broadcast.
class QuantizedMatmul : public mx::UnaryPrimitive, public metal::MetalPrimitive {
 public:
  QuantizedMatmul(mx::Stream stream, int group_size, int bits, bool transpose, bool tf32)
      : mx::UnaryPrimitive(stream),
        group_size_(group_size),
        bits_(bits),
        transpose_(transpose),
        tf32_(tf32) {}

  // The product by an op of these settings, but for `transpose`.
  mx::array apply(const mx::array& x, const mx::array& w, const mx::array& scales,
                  const mx::array& biases, bool transpose, bool force_fused = false);

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
  void eval_metal(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
                  std::vector<mx::array>& outputs) override;
  std::shared_ptr<mx::Primitive> on(mx::Stream stream) const override;
  std::vector<metal::TrialShapes> trial_shapes(const std::vector<mx::array>& inputs,
                                               metal::TrialSize size) const override;
  std::vector<mx::array> trial_inputs(const metal::TrialShapes& shapes,
                                      const std::vector<mx::array>& inputs) const override;
  std::vector<mx::array> jvp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& tangents,
                             const std::vector<int>& argnums) override;
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>& inputs,
                                                           const std::vector<int>& axes) override;
  const char* name() const override { return "mlx_tensorops::QuantizedMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  std::pair<mx::array, mx::array> scales_grad(const std::vector<mx::array>& primals,
                                              const mx::array& cotangent);

  int group_size_;
  int bits_;
  bool transpose_;
  bool tf32_;  // products of float32 may be rounded to 11 bits first, where that is faster
};

}  // namespace mto
