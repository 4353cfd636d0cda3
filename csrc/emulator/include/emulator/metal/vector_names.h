#pragma once

#include "emulator/metal/packed_vector.h"

// float4, packed_half2 and so on, in the global namespace and in metal, as Apple's headers have
// them.

#define EMU_NAMES(T)                             \
  typedef metal::vec<T, 2> T##2;                 \
  typedef metal::vec<T, 3> T##3;                 \
  typedef metal::vec<T, 4> T##4;                 \
  typedef metal::packed_vec<T, 2> packed_##T##2; \
  typedef metal::packed_vec<T, 3> packed_##T##3; \
  typedef metal::packed_vec<T, 4> packed_##T##4; \
  namespace metal {                              \
  using ::packed_##T##2;                         \
  using ::packed_##T##3;                         \
  using ::packed_##T##4;                         \
  using ::T##2;                                  \
  using ::T##3;                                  \
  using ::T##4;                                  \
  }
EMU_NAMES(bool)
EMU_NAMES(char)
EMU_NAMES(uchar)
EMU_NAMES(short)
EMU_NAMES(ushort)
EMU_NAMES(int)
EMU_NAMES(uint)
EMU_NAMES(long)
EMU_NAMES(ulong)
EMU_NAMES(half)
EMU_NAMES(bfloat)
EMU_NAMES(float)
#undef EMU_NAMES

namespace metal {
using ::bfloat;
using ::half;
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;
}  // namespace metal
