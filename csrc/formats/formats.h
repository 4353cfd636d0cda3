#pragma once

// The table of block formats: every format is a row here and decode functions in a header beside.

#include <array>
#include <cstdint>
#include <string_view>

#include "formats/coded.h"
#include "formats/ggml.h"
#include "formats/ggml_k.h"

namespace mto {

enum class Scales : int32_t { kInside, kFloat, kE8M0, kE4M3 };
enum class Third : int32_t { kNone, kBiases, kGlobalScale };
enum class Layout : int32_t {
  kLowFirst,   // the first code in the lowest bits of a byte
  kHighFirst,  // in the highest
  kQuarters,   // of outputs: byte [r, k] holds outputs r, r + n / 4, ..
  kBlocks,     // blocks with their scales inside
};

constexpr int kWholeAxis = 0;

struct FormatRow {
  const char* name;  // the mode
  const char* type;  // the struct of its decode functions, and a template argument of Metal kernels
  int bits;          // of a code; 0 inside blocks
  int block;         // values that are stored together, and the bytes they take
  int block_bytes;
  bool words;  // whether w is uint32, else uint8
  Layout layout;
  Scales scales;
  Third third;
  // Values that share a scale: of one column, and of one row; the group size where none is given.
  int group_rows, group_cols;
  float (*level)(uint32_t code);  // what a code stands for; null inside blocks
  Coding coding;
  // Of a user's format: its decode function, and the text of its struct for Metal.
  void (*decode_block)(const uint8_t* block, float* values) = nullptr;
  const char* metal = nullptr;
};

constexpr int kMaxLevels = 256;
using Levels = std::array<float, kMaxLevels>;

MTO_LOCAL_BEGIN

// Of the codes of a row, repeated.
inline Levels levels_of(const FormatRow& row, int bits) {
  Levels levels{};
  for (int i = 0; row.level && i < kMaxLevels; ++i) levels[i] = row.level(i & ((1 << bits) - 1));
  return levels;
}

#define MTO_CODED_ROW(name, Codes, block, words, layout, scales, third, group_rows, group_cols) \
  FormatRow {                                                                                   \
    name, #Codes, Codes::kBits, block, block *Codes::kBits / 8, words, layout, scales, third,   \
        group_rows, group_cols, Codes::level, static_cast<Coding>(Codes::kCoding)               \
  }
#define MTO_BLOCK_ROW(name, Block)                                                               \
  FormatRow {                                                                                    \
    name, #Block, 0, Block::kBlock, Block::kBlockBytes, false, Layout::kBlocks, Scales::kInside, \
        Third::kNone, 1, Block::kBlock, nullptr, kNoCoding                                       \
  }

// MTO_BLOCK_FORMATS(F): F(mode, struct) for every format of blocks with their scales inside.
#define MTO_BLOCK_FORMATS(F) \
  F("q4_0", Q4_0)            \
  F("q4_1", Q4_1)            \
  F("q5_0", Q5_0)            \
  F("q5_1", Q5_1)            \
  F("q8_0", Q8_0)            \
  F("q2_k", Q2_K)            \
  F("q3_k", Q3_K)            \
  F("q4_k", Q4_K)            \
  F("q5_k", Q5_K)            \
  F("q6_k", Q6_K)            \
  F("iq4_nl", Iq4Nl)         \
  F("tq1_0", Tq1_0)          \
  F("tq2_0", Tq2_0)

#define MTO_ROW_AND_COMMA(name, Block) MTO_BLOCK_ROW(name, Block),

// The bits of "affine" are those of a call.
[[maybe_unused]] constexpr FormatRow kFormats[] = {
    FormatRow{"affine", "UnsignedCodes", 4, 32, 16, true, Layout::kLowFirst, Scales::kFloat,
              Third::kBiases, 1, 64, UnsignedCodes<8>::level, kUnsignedCoding},
    MTO_CODED_ROW("mxfp4", E2M1Codes, 32, true, Layout::kLowFirst, Scales::kE8M0, Third::kNone, 1,
                  32),
    MTO_CODED_ROW("mxfp8", E4M3Codes, 32, true, Layout::kLowFirst, Scales::kE8M0, Third::kNone, 1,
                  32),
    MTO_CODED_ROW("mxfp6_e2m3", E2M3Codes, 32, true, Layout::kLowFirst, Scales::kE8M0, Third::kNone,
                  1, 32),
    MTO_CODED_ROW("mxfp6_e3m2", E3M2Codes, 32, true, Layout::kLowFirst, Scales::kE8M0, Third::kNone,
                  1, 32),
    MTO_CODED_ROW("mxint8", MxInt8Codes, 32, true, Layout::kLowFirst, Scales::kE8M0, Third::kNone,
                  1, 32),
    MTO_CODED_ROW("nvfp4", E2M1Codes, 16, true, Layout::kLowFirst, Scales::kE4M3,
                  Third::kGlobalScale, 1, 16),
    MTO_CODED_ROW("int2_e8m0", SignedCodes<2>, 32, true, Layout::kLowFirst, Scales::kE8M0,
                  Third::kNone, 1, 32),
    MTO_CODED_ROW("int4_e8m0", SignedCodes<4>, 32, true, Layout::kLowFirst, Scales::kE8M0,
                  Third::kNone, 1, 32),
    MTO_CODED_ROW("int8_e8m0", SignedCodes<8>, 32, true, Layout::kLowFirst, Scales::kE8M0,
                  Third::kNone, 1, 32),
    MTO_CODED_ROW("fp8_e4m3", E4M3Codes, 1, false, Layout::kLowFirst, Scales::kFloat, Third::kNone,
                  128, 128),
    MTO_CODED_ROW("fp8_e5m2", E5M2Codes, 1, false, Layout::kLowFirst, Scales::kFloat, Third::kNone,
                  128, 128),
    MTO_CODED_ROW("nf4", Nf4Codes, 32, false, Layout::kHighFirst, Scales::kFloat, Third::kNone, 1,
                  64),
    MTO_CODED_ROW("bnb_fp4", BnbFp4Codes, 32, false, Layout::kHighFirst, Scales::kFloat,
                  Third::kNone, 1, 64),
    MTO_CODED_ROW("ternary", TernaryCodes, 4, false, Layout::kLowFirst, Scales::kFloat,
                  Third::kNone, 1, kWholeAxis),
    MTO_CODED_ROW("bitnet", TernaryCodes, 4, false, Layout::kQuarters, Scales::kFloat, Third::kNone,
                  kWholeAxis, kWholeAxis),
    MTO_BLOCK_FORMATS(MTO_ROW_AND_COMMA)};

MTO_LOCAL_END
}  // namespace mto
