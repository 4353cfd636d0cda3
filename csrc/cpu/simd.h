#pragma once

// The vector verbs of one instruction set. Each simd_<isa>.h defines, in its own namespace so that
// code compiled for one instruction set is never linked into another:
//
//   Vec, kLanes                    a vector of kLanes floats
//   zero, broadcast, load, store   float32 memory, any alignment
//   load_as, store_as              memory of a FloatType; index in elements; rounds to nearest even
//   fma(a, b, c)                   a * b + c
//   add, sub, mul, div             rounded once
//   nearest(v)                     the nearest integers, ties to even
//   scaled(v, n)                   v * 2^n, n whole numbers from -126 to 127; v NaN: NaN
//   select(a, b, x, y)             x where a < b, else y
//   min(a, b), max(a, b)           a where a < b (a > b), else b: b where either is NaN
//   gather(p, n)                   lane i is p[i * n]
//   total(v)                       the sum of the lanes, in one fixed order of additions
//   transpose(rows)                kLanes vectors as a square, across its diagonal
//   lowest, highest                the extreme lane of a vector without NaN; either zero
//   reduce4(v0..v3, out)           out[i] = sum of the lanes of vi, in one fixed order of additions
//   Codes, unpack<Bits, V>(block)  codes V * kLanes .. of a block of 32 codes packed LSB first;
//   bits
//                                  above a code may hold its neighbours
//   to_float<Bits>(codes)          the codes as floats
//   to_codes<Bits>(v)              the nearest codes, ties to even; NaN becomes 0
//   pack<Bits>(codes, block)       the inverse of unpack, from all vectors of a block
//   as_codes(v)                    the bits of a vector
//   shift_left<N>, shift_right<N>  of each code, zeros shifted in
//   join(a, b)                     a | b
//   low_bits<Bits>(codes)          the others cleared
//   kRegisters                     how many vectors are at hand
//   kLookupBits                    codes of at most so many bits can be looked up
//   Lookup<Bits>, lookup           a table of 2^Bits floats held in registers
//   Table, make_table(levels, f)   a table of f(levels[0 .. 15]), f a function of vectors
//   table_lookup(codes, table)     its values by the lowest 4 bits of the codes
//   gathered<Bits>(codes, levels)  values of a table in memory
//   upper_nibble(codes)            the codes without their lowest 4 bits

// Arrays of vectors stay in registers only where everything that touches them is inlined: kernels
// are MTO_FLAT, the helpers they hand such arrays to MTO_INLINE.
#define MTO_INLINE inline __attribute__((always_inline))
#define MTO_FLAT __attribute__((flatten))
// Not inlined even there: large, and not worth it.
#define MTO_APART __attribute__((noinline, unused))

#if defined(MTO_ISA_avx512)
#include "cpu/simd_avx512.h"
#elif defined(MTO_ISA_avx2)
#include "cpu/simd_avx2.h"
#elif defined(MTO_ISA_neon)
#include "cpu/simd_neon.h"
#else
#include "cpu/simd_scalar.h"
#endif

namespace mto::MTO_ISA {
namespace {

// Calls f(Index<0>{}) .. f(Index<N - 1>{}).
template <int I>
struct Index {
  static constexpr int value = I;
};

template <int N, int I = 0, typename F>
MTO_INLINE void unroll(F&& f) {
  if constexpr (I < N) {
    f(Index<I>{});
    unroll<N, I + 1>(f);
  }
}

constexpr int kBlock = 32;  // codes in a block: every group size is a multiple of it
constexpr int kVecsPerBlock = kBlock / kLanes;
constexpr int block_bytes(int bits) { return kBlock * bits / 8; }

inline float load_one(FloatType type, const void* base, int64_t index) {
  switch (type) {
    case FloatType::kFloat32:
      return static_cast<const float*>(base)[index];
    case FloatType::kFloat16:
      return float_from_f16(static_cast<const uint16_t*>(base)[index]);
    default:
      return float_from_bf16(static_cast<const uint16_t*>(base)[index]);
  }
}

inline void store_one(FloatType type, void* base, int64_t index, float value) {
  switch (type) {
    case FloatType::kFloat32:
      static_cast<float*>(base)[index] = value;
      return;
    case FloatType::kFloat16:
      static_cast<uint16_t*>(base)[index] = f16_from_float(value);
      return;
    default:
      static_cast<uint16_t*>(base)[index] = bf16_from_float(value);
  }
}

// The first n lanes, 0 < n, as load_as; zeros behind them. No byte behind the n-th is read.
inline Vec load_part(FloatType type, const void* base, int64_t index, int64_t n) {
  if (n >= kLanes) return load_as(type, base, index);
#if defined(MTO_ISA_avx512)
  return load_first(type, base, index, static_cast<int>(n));
#else
  alignas(64) char part[kLanes * sizeof(float)] = {};
  std::memcpy(part, static_cast<const char*>(base) + index * size_of(type), n * size_of(type));
  return load_as(type, part, 0);
#endif
}

// Converts n elements to float32.
MTO_APART void convert_to_float(FloatType type, const void* base, int64_t index, int64_t n,
                                float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load_as(type, base, index + i));
  for (; i < n; ++i) out[i] = load_one(type, base, index + i);
}

MTO_APART void convert_from_float(FloatType type, const float* values, int64_t n, void* base,
                                  int64_t index) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_as(type, base, index + i, load(values + i));
  for (; i < n; ++i) store_one(type, base, index + i, values[i]);
}

}  // namespace
}  // namespace mto::MTO_ISA
