#include "metal/format_binding.h"

namespace mto::metal {
namespace {

std::string scale_type(const FormatCall& call, const mx::array& scales) {
  if (scales.dtype() != mx::uint8) {
    return std::string("mto::FloatScale<") + type_name(scales.dtype()) + ">";
  }
  return call.row->scales == Scales::kE4M3 ? "mto::E4M3Scale" : "mto::E8M0Scale";
}

std::string third_type(const FormatCall& call, const std::vector<mx::array>& packed) {
  if (packed.size() < 3) return "mto::NoThird";
  if (!call.affine()) return "mto::GlobalScale";
  return std::string("mto::Biases<") + type_name(packed[2].dtype()) + ">";
}

}  // namespace

std::string format_type(const FormatCall& call, const std::vector<mx::array>& packed) {
  const auto& row = *call.row;
  auto type = "mto::" + std::string(row.type);
  if (call.affine()) type += "<" + std::to_string(call.bits) + ">";
  if (row.layout == Layout::kBlocks) return "mto::Blocks<" + type + ">";
  auto scale = scale_type(call, packed[1]);
  if (row.layout == Layout::kQuarters) return "mto::Quarters<" + type + ", " + scale + ">";
  auto high_first = argument_text(row.layout == Layout::kHighFirst);
  return "mto::Coded<" + type + ", " + scale + ", " + third_type(call, packed) + ", " +
         argument_text(row.words) + ", " + high_first + ">";
}

void bind_packed(Encoder& encoder, const FormatCall& call, const std::vector<mx::array>& packed) {
  // There has to be something to bind.
  for (int i = 0; i < 3; ++i) encoder.input(packed[i < static_cast<int>(packed.size()) ? i : 0], i);
  auto m = packed_matrix(call, packed);
  auto as_int = [](int64_t value) { return static_cast<int32_t>(value); };
  encoder.value(PackedParams{m.row_bytes, m.scales_stride, as_int(m.n_rows), as_int(m.n_cols),
                             as_int(m.group_rows), as_int(m.group_cols)},
                3);
}

FormatTable format_table(const mx::Shape& batch, std::vector<mx::array> first,
                         const std::vector<mx::array>& packed) {
  for (size_t i = 0; i < 3; ++i) first.push_back(packed[i < packed.size() ? i : 0]);
  auto data = batch_table(batch, first);
  auto n_dims = static_cast<int32_t>(data.size() / (1 + first.size()));
  if (data.empty()) data.resize(1);  // there has to be something to bind
  return {std::move(data), n_dims};
}

}  // namespace mto::metal
