#pragma once

// Decodes the affine format 32 codes at a time (see cpu/simd.h for the verbs and the block).

#include "cpu/simd.h"
#include "formats/affine.h"

namespace mto::MTO_ISA {
namespace {

// One group, ready to decode: a table of its 2^Bits values where the instruction set can hold one
// in registers, else its scale and bias. Both ways a value is fma(code, scale, bias), rounded once.
template <int Bits, bool Tabled = (Bits <= kLookupBits)>
struct AffineGroup {
  Vec scale, bias;
  static AffineGroup make(float scale, float bias) { return {broadcast(scale), broadcast(bias)}; }
  Vec values(Codes codes) const { return fma(to_float<Bits>(codes), scale, bias); }
};

#if defined(MTO_ISA_avx512) || defined(MTO_ISA_avx2)
template <int Bits>
struct AffineGroup<Bits, true> {
  Lookup<Bits> table;
  static AffineGroup make(float scale, float bias) {
    return {make_lookup<Bits>(
        [&](Vec codes) { return fma(codes, broadcast(scale), broadcast(bias)); })};
  }
  Vec values(Codes codes) const { return lookup<Bits>(codes, table); }
};
#endif

// The V-th vector of a block's 32 values.
template <int Bits, int V>
inline Vec affine_decode(const uint8_t* block, const AffineGroup<Bits>& group) {
  return group.values(unpack<Bits, V>(block));
}

// Calls f.template operator()<Bits>() for the bits of the format.
template <typename F>
inline void dispatch_affine_bits(int bits, F&& f) {
  switch (bits) {
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    case 4:
      return f.template operator()<4>();
    case 5:
      return f.template operator()<5>();
    case 6:
      return f.template operator()<6>();
    default:
      return f.template operator()<8>();
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
