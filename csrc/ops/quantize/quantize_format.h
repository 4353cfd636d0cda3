#pragma once

#include "common/format_call.h"

namespace mto {

// Encodes w into any format but affine. Inputs w and, where there is one, the global scale; outputs
// w_q and scales, of the shapes that users see.
class QuantizeFormat : public mx::Primitive {
 public:
  QuantizeFormat(mx::Stream stream, FormatCall call) : mx::Primitive(stream), call_(call) {}

  std::vector<mx::array> apply(const std::vector<mx::array>& inputs);

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  std::vector<mx::array> jvp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& tangents,
                             const std::vector<int>& argnums) override;
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>& inputs,
                                                           const std::vector<int>& axes) override;
  const char* name() const override { return "mlx_tensorops::QuantizeFormat"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  FormatCall call_;
};

void check_encoded(const FormatCall& call, const mx::array& w);

}  // namespace mto
