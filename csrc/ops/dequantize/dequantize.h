#pragma once

#include "common/format_call.h"
#include "metal/encoder.h"

namespace mto {

mx::array dequantize(const mx::array& w, const std::optional<mx::array>& scales,
                     const std::optional<mx::array>& biases,
                     const std::optional<GroupSize>& group_size, std::optional<int> bits,
                     const std::string& mode, const std::optional<mx::array>& global_scale,
                     std::optional<mx::Dtype> dtype, const std::optional<std::string>& route,
                     bool force_fused, mx::StreamOrDevice s);

// The codes of affine w as float32 [.., n]; scales give the shape of the groups.
mx::array affine_codes(const mx::array& w, const mx::array& scales, int group_size, int bits,
                       mx::Stream stream);

// Inputs w, scales, biases with equal leading dimensions.
class Dequantize : public mx::UnaryPrimitive, public metal::MetalPrimitive {
 public:
  Dequantize(mx::Stream stream, int group_size, int bits, mx::Dtype dtype)
      : mx::UnaryPrimitive(stream), group_size_(group_size), bits_(bits), dtype_(dtype) {}

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
  const char* name() const override { return "mlx_tensorops::Dequantize"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  mx::array apply(const mx::array& w, const mx::array& scales, const mx::array& biases);

  int group_size_;
  int bits_;
  mx::Dtype dtype_;
};

}  // namespace mto
