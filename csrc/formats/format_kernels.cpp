// Which decoder a format has.

#include "formats/format_kernels.h"

#include "formats/decode_simd.h"

namespace mto::MTO_ISA {
namespace {

Decoder decoder_of_bits(int bits) {
  switch (bits) {
    case 1:
      return decode_codes<1>;
    case 2:
      return decode_codes<2>;
    case 3:
      return decode_codes<3>;
    case 4:
      return decode_codes<4>;
    case 5:
      return decode_codes<5>;
    case 6:
      return decode_codes<6>;
    default:
      return decode_codes<8>;
  }
}

Decoder decoder(std::string_view mode, int bits, Layout layout) {
  if (layout == Layout::kQuarters) return decode_quarters;
  if (layout != Layout::kBlocks) return decoder_of_bits(bits);
#define MTO_DECODER(name, Format) \
  if (mode == name) return decode_blocks<Format>;
  MTO_BLOCK_FORMATS(MTO_DECODER)
#undef MTO_DECODER
  return decode_called;
}

}  // namespace

extern const FormatKernels format_kernels;
const FormatKernels format_kernels{decoder};

}  // namespace mto::MTO_ISA
