#pragma once

// How the work of one product is cut, as pure functions of the shape: results then depend neither
// on the number of threads nor on their timing.

#include <cstdint>

namespace mto {

// Rows that share one decoding of the weights. Decoding costs about as much as multiplying four
// rows: 128 rows hide it. The block of x (128 x kTileDepth floats) has to stay in a 1 MiB L2.
constexpr int64_t kTileRows = 128;
// Columns of a tile, transposed: limited by the partial sums, which are whole vectors
// (128 x 48 x 64 bytes = 384 KiB). Also a multiple of the four columns of the inner kernel.
constexpr int64_t kTileCols = 48;
// Values of k decoded at a time: four columns of 512 floats are 8 KiB, a quarter of the smallest
// L1.
constexpr int64_t kTileDepth = 512;
// Not transposed: the decoded block (64 x 128 floats = 32 KiB) is what the inner kernel walks over;
// the columns hold whole groups of every size.
constexpr int64_t kTileColsN = 128;
constexpr int64_t kTileDepthN = 64;

// Columns that one task of a few-row product computes: about 64 KiB of 4-bit weights at k = 4096,
// so tasks are long against the cost of taking one (well under 1 us) and still many.
constexpr int64_t kFewRowsCols = 32;
// Not transposed a task reads its part of every row of w, each on another page: 256 bytes at 4 bits
// are twice as fast as 64, more only helps where cores are few.
constexpr int64_t kFewRowsColsN = 512;

// Below so many multiply-adds (some 5 us) a product runs on the calling thread: waking another
// would take longer.
constexpr int64_t kSerialWork = 1 << 16;

inline int64_t tile_cols(bool transpose) { return transpose ? kTileCols : kTileColsN; }
inline int64_t few_rows_cols(bool transpose) { return transpose ? kFewRowsCols : kFewRowsColsN; }

}  // namespace mto
