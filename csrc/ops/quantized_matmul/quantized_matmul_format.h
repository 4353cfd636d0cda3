#pragma once

#include "common/format_call.h"
#include "metal/encoder.h"

namespace mto {

// Inputs x, and the packed matrix as check_packed() makes it; leading dimensions broadcast.
class QuantizedMatmulFormat : public mx::UnaryPrimitive, public metal::MetalPrimitive {
 public:
  QuantizedMatmulFormat(mx::Stream stream, FormatCall call, bool transpose, bool tf32)
      : mx::UnaryPrimitive(stream), call_(call), transpose_(transpose), tf32_(tf32) {}

  // The product by an op of these settings, but for `transpose`.
  mx::array apply(const std::vector<mx::array>& inputs, bool transpose, bool force_fused = false);

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
  const char* name() const override { return "mlx_tensorops::QuantizedMatmulFormat"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  mx::array matrix_gradient(const std::vector<mx::array>& primals, const mx::array& cotangent);

  FormatCall call_;
  bool transpose_;
  bool tf32_;
};

}  // namespace mto
