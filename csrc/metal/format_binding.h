#pragma once

// A packed matrix of any format as a Metal kernel gets it.

#include "common/format_call.h"
#include "formats/packed_params.h"
#include "metal/batch_table.h"
#include "metal/encoder.h"
#include "metal/instance.h"

namespace mto::metal {

// The format's type as MSL spells it; see metal/tile/format_values.h.
std::string format_type(const FormatCall& call, const std::vector<mx::array>& packed);

// Template arguments as text.
struct FormatType {
  std::string text;
};
inline const std::string& argument_text(const FormatType& type) { return type.text; }

// A kernel of metal/<op>.metal whose first template argument is the format.
template <typename... Args>
Kernel format_kernel(const std::string& op, const std::string& function, const FormatCall& call,
                     const std::vector<mx::array>& packed, const Args&... args) {
  Kernel kernel{op, instance(function, FormatType{format_type(call, packed)}, args...), {}};
  if (call.row->metal) kernel.prelude = call.row->metal;
  return kernel;
}

// Binds w, scales, the third array and their geometry to buffers 0 .. 3.
void bind_packed(Encoder& encoder, const FormatCall& call, const std::vector<mx::array>& packed);

// Where the matrices of a batch start, for metal/tile/batch.h: of `first` arrays, then of w, scales
// and the third array.
struct FormatTable {
  std::vector<int64_t> data;
  int32_t n_dims;
};
FormatTable format_table(const mx::Shape& batch, std::vector<mx::array> first,
                         const std::vector<mx::array>& packed);

}  // namespace mto::metal
