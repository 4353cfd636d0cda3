#pragma once

// AMX: products of bytes, signed ones on the left and unsigned ones on the right, summed in int32;
// and what every processor with AMX can do with bytes in vectors
// (AVX-512 VBMI and VNNI). By inline assembly, as in
// bf16_tiles.h, whose verbs load and store the tiles.

#include "cpu/bf16_tiles.h"

namespace mto::MTO_ISA {
namespace {

// Registers 0 to 2 hold sums, 4 to 6 left tiles, 3 and 7 right tiles. Between shapes tiles may not
// be touched; contents are lost where the shape changes.
class Int8Tiles {
 public:
  static constexpr int kMaxRows = 16, kMaxDepth = 64;

  Int8Tiles() = default;
  ~Int8Tiles() { asm volatile("tilerelease"); }
  Int8Tiles(const Int8Tiles&) = delete;
  Int8Tiles& operator=(const Int8Tiles&) = delete;

  // Left tiles of [n_rows, depth] bytes, right tiles of [depth, 16].
  void shape(int n_rows, int depth) {
    if (n_rows == n_rows_ && depth == depth_) return;
    n_rows_ = n_rows;
    depth_ = depth;
    TileConfiguration c{1, 0, {}, {}, {}};
    for (int i = 0; i < 8; ++i) {
      bool left = i >= 4 && i < 7, right = i == 3 || i == 7;
      c.row_bytes[i] = static_cast<uint16_t>(left ? depth : 64);
      c.rows[i] = static_cast<uint8_t>(right ? depth / 4 : n_rows);
    }
    asm volatile("ldtilecfg %0" ::"m"(c));
  }

 private:
  int n_rows_ = 0, depth_ = 0;
};

// Sums [rows, 16] int32 += left [rows, depth] x right, where row r of `right` holds rows 4r to
// 4r + 3 of [depth, 16], element by element.
template <int Sums, int LeftTile, int RightTile>
MTO_INLINE void tile_multiply_bytes() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(LeftTile), "i"(RightTile));
}

// Byte i of the result is byte indices[i] % 64 of `bytes`.
MTO_INLINE __m512i pick_bytes(__m512i bytes, __m512i indices) {
  __m512i picked;
  asm("vpermb %1, %2, %0" : "=v"(picked) : "v"(bytes), "v"(indices));
  return picked;
}

// Byte i of the result is the 8 bits from bit shifts[i] % 64 on of the 64 that it lies in.
MTO_INLINE __m512i pick_bits(__m512i words, __m512i shifts) {
  __m512i picked;
  asm("vpmultishiftqb %1, %2, %0" : "=v"(picked) : "v"(words), "v"(shifts));
  return picked;
}

// Lane i of the result is that of `sums`, plus the products of unsigned and signed bytes 4i to
// 4i + 3.
MTO_INLINE __m128i add_products(__m128i sums, __m128i unsigned_bytes, __m128i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes));
  return sums;
}

}  // namespace
}  // namespace mto::MTO_ISA
