#pragma once

#include "common/format_call.h"
#include "metal/encoder.h"

namespace mto {

// Decodes an array of any format. Inputs as check_packed() makes them.
class DequantizeFormat : public mx::UnaryPrimitive, public metal::MetalPrimitive {
 public:
  DequantizeFormat(mx::Stream stream, FormatCall call, mx::Dtype dtype)
      : mx::UnaryPrimitive(stream), call_(call), dtype_(dtype) {}

  mx::array apply(const std::vector<mx::array>& packed, bool force_fused = false);

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
  const char* name() const override { return "mlx_tensorops::DequantizeFormat"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  FormatCall call_;
  mx::Dtype dtype_;
};

// The packed arrays with the tangents of those that have one: a decoded array is linear in its
// scales and biases together, or in its scales and its global scale one by one. `first` is the
// argument number of w.
std::vector<std::vector<mx::array>> linear_terms(const FormatCall& call,
                                                 const std::vector<mx::array>& packed, int first,
                                                 const std::vector<mx::array>& tangents,
                                                 const std::vector<int>& argnums, mx::Stream s);

// The gradient of packed[i], given that of the decoded matrix in float32.
mx::array packed_gradient(const FormatCall& call, const std::vector<mx::array>& packed, int i,
                          const mx::array& grad, mx::Stream s);

}  // namespace mto
