#pragma once

#include <metal_stdlib>

#include "formats/affine.h"

namespace mto {

constant constexpr int kRun = kAffineRun;

// A run of 8 codes of `Bits` bits: `Bits` bytes, the first code in the lowest bits. In the fewest
// loads: the run is at a multiple of `Bits` bytes in a row of whole words.
template <int Bits>
inline ulong load_run(const device uchar* bytes) {
  ulong run = 0;
  if constexpr (Bits % 4 == 0) {
    for (int i = 0; i < Bits / 4; ++i) run |= ulong(((const device uint*)bytes)[i]) << (32 * i);
  } else if constexpr (Bits % 2 == 0) {
    for (int i = 0; i < Bits / 2; ++i) run |= ulong(((const device ushort*)bytes)[i]) << (16 * i);
  } else {
    for (int i = 0; i < Bits; ++i) run |= ulong(bytes[i]) << (8 * i);
  }
  return run;
}

template <int Bits>
inline void store_run(ulong run, device uchar* bytes) {
  for (int i = 0; i < Bits; ++i) bytes[i] = uchar(run >> (8 * i));
}

}  // namespace mto
