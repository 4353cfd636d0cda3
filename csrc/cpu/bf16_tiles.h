#pragma once

// AMX: eight tile registers of 16 rows of 64 bytes, and products of bfloat16 summed in float32.
// By inline assembly, as the code around it is compiled for processors without them. Numbers of
// registers are template arguments.

#include <immintrin.h>

#include <cstdint>

#include "cpu/simd.h"

namespace mto::MTO_ISA {
namespace {

struct TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// All registers of full size while this lives; before and after, tiles may not be touched.
class Bf16Tiles {
 public:
  Bf16Tiles() {
    TileConfiguration c{1, 0, {}, {}, {}};
    for (int i = 0; i < 8; ++i) {
      c.row_bytes[i] = 64;
      c.rows[i] = 16;
    }
    asm volatile("ldtilecfg %0" ::"m"(c));
  }
  ~Bf16Tiles() { asm volatile("tilerelease"); }
  Bf16Tiles(const Bf16Tiles&) = delete;
  Bf16Tiles& operator=(const Bf16Tiles&) = delete;
};

// `stride` bytes between rows.
template <int Tile>
MTO_INLINE void tile_load(const void* rows, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
MTO_INLINE void tile_store(void* rows, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
MTO_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}

// Sums [16, 16] float32 += left [16, 32] bfloat16 x right, where row r of `right` holds rows 2r and
// 2r + 1 of [32, 16] bfloat16, element by element.
template <int Sums, int LeftTile, int RightTile>
MTO_INLINE void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(LeftTile), "i"(RightTile));
}

// 32 floats as bfloat16, rounded to nearest even; sub-normal ones become zero.
MTO_INLINE __m512i bf16_from_vecs(Vec low, Vec high) {
  __m512i halves;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(halves) : "v"(low), "v"(high));
  return halves;
}

}  // namespace
}  // namespace mto::MTO_ISA
