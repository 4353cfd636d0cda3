#pragma once

#include "common/format_call.h"
#include "metal/encoder.h"

namespace mto {

// w_q, scales and, where the format has them, biases.
std::vector<mx::array> quantize(const mx::array& w, const std::optional<GroupSize>& group_size,
                                std::optional<int> bits, const std::string& mode,
                                const std::optional<mx::array>& global_scale,
                                const std::optional<std::string>& route, bool force_fused,
                                mx::StreamOrDevice s);

// See check.h.
std::string unsupported_quantize(std::string_view backend, const FormatCall& call,
                                 const NamedDtypes& dtypes);

// Outputs w_q, scales, biases.
class Quantize : public mx::Primitive, public metal::MetalPrimitive {
 public:
  Quantize(mx::Stream stream, int group_size, int bits)
      : mx::Primitive(stream), group_size_(group_size), bits_(bits) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
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
  const char* name() const override { return "mlx_tensorops::Quantize"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  // d scale / d w and d bias / d w, [.., n_groups, group_size].
  std::pair<mx::array, mx::array> jacobians(const mx::array& w);

  int group_size_;
  int bits_;
};

}  // namespace mto
