// One group after another: its scale, then its codes.

#include "ops/quantize/quantize_format_kernels.h"

#include "formats/decode_simd.h"
#include "formats/encode.h"

namespace mto::MTO_ISA {
namespace {

using Params = QuantizeFormatParams;

// Rows row0 .. row1 and columns col0 .. col1 of a matrix.
struct Group {
  int64_t row0, row1, col0, col1, index;
};

template <typename F>
void each_value(const Params& p, const Group& group, F&& f) {
  for (int64_t row = group.row0; row < group.row1; ++row) {
    for (int64_t col = group.col0; col < group.col1; ++col) {
      f(row, col, load_one(p.type, p.w, row * p.matrix.n_cols + col));
    }
  }
}

// Codes are joined by or: bytes are shared by the codes of one row, or of four.
void put_code(const Params& p, int64_t row, int64_t col, uint32_t code) {
  const auto& m = p.matrix;
  if (m.layout == Layout::kQuarters) {
    int64_t quarter = m.n_rows / 4;
    p.w_q[row % quarter * m.row_bytes + col] |= static_cast<uint8_t>(code << (row / quarter * 2));
    return;
  }
  int64_t bit = col * m.bits;
  if (m.layout == Layout::kHighFirst) bit ^= 4;
  uint8_t* at = p.w_q + row * m.row_bytes + bit / 8;
  uint32_t both = code << (bit % 8);
  at[0] |= static_cast<uint8_t>(both);
  if (bit % 8 + m.bits > 8) at[1] |= static_cast<uint8_t>(both >> 8);
}

// The greatest magnitude; whether all are finite.
struct Extent {
  float largest = 0.0f, finite = 0.0f;
  bool all_finite = true;
};

Extent extent_of(const Params& p, const Group& group) {
  Extent extent;
  each_value(p, group, [&](int64_t, int64_t, float value) {
    float size = std::fabs(value);
    extent.largest = size > extent.largest ? size : extent.largest;
    if (!std::isfinite(value)) extent.all_finite = false;
    if (std::isfinite(value) && size > extent.finite) extent.finite = size;
  });
  return extent;
}

// Scales that are bytes: a group that is not finite has the scale NaN and codes 0.
void coded_group(const Params& p, const Encoder& encoder, const Encoder& scale_encoder,
                 const Group& group) {
  auto extent = extent_of(p, group);
  bool e4m3 = p.scale_kind == Scales::kE4M3;
  auto* scales = static_cast<uint8_t*>(p.scales);
  if (!extent.all_finite) {
    scales[group.index] = e4m3 ? 0x7f : 0xff;
    return;
  }
  auto type = encoder.step_type;
  float wanted = rounded_to(type, extent.largest / encoder.largest), factor = 1.0f;
  if (p.matrix.global_scale) {
    factor = 2688.0f / *p.matrix.global_scale;
    wanted *= factor;
  }
  auto byte = e4m3 ? static_cast<uint8_t>(scale_encoder.code(wanted)) : e8m0_at_least(wanted);
  scales[group.index] = byte;
  float scale = e4m3 ? float_from_e4m3(byte) : float_from_e8m0(byte);
  auto own = encoder;
  if (p.matrix.global_scale) own.step_type = FloatType::kFloat32;
  each_value(p, group, [&](int64_t row, int64_t col, float value) {
    float step = rounded_to(type, value / scale);
    put_code(p, row, col, own.code(p.matrix.global_scale ? step * factor : step));
  });
}

// The scale of a group of a format with float32 scales.
float float_scale(const Params& p, const Encoder& encoder, const Group& group) {
  if (p.coding == kTernaryCoding) {
    double sum = 0.0;
    each_value(p, group, [&](int64_t, int64_t, float value) { sum += std::fabs(double{value}); });
    return static_cast<float>(sum / ((group.row1 - group.row0) * (group.col1 - group.col0)));
  }
  auto extent = extent_of(p, group);
  if (p.coding == kLevelCoding) return extent.largest;
  float scale = extent.finite / encoder.largest;
  return scale == 0.0f ? 1.0f : scale;
}

void float_group(const Params& p, const Encoder& encoder, const Group& group) {
  float scale = float_scale(p, encoder, group);
  static_cast<float*>(p.scales)[group.index] = scale;
  float divisor = scale == 0.0f ? 1.0f : scale;
  each_value(p, group, [&](int64_t row, int64_t col, float value) {
    put_code(p, row, col, encoder.code(value / divisor));
  });
}

void groups(const Params& p, int64_t begin, int64_t end) {
  static const Levels e4m3 = [] {
    Levels all{};
    for (int i = 0; i < kMaxLevels; ++i) all[i] = float_from_e4m3(i);
    return all;
  }();
  const auto& m = p.matrix;
  Encoder encoder(m.levels->data(), p.coding, m.bits, p.of_mlx, p.type);
  Encoder scale_encoder(e4m3.data(), kFloatCoding, 8, false, FloatType::kFloat32);
  int64_t n_groups = (m.n_cols + m.group_cols - 1) / m.group_cols;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < n_groups; ++c) {
      Group group{r * m.group_rows, std::min((r + 1) * m.group_rows, m.n_rows), c * m.group_cols,
                  std::min((c + 1) * m.group_cols, m.n_cols), r * n_groups + c};
      if (p.scale_kind == Scales::kFloat) {
        float_group(p, encoder, group);
      } else {
        coded_group(p, encoder, scale_encoder, group);
      }
    }
  }
}

}  // namespace

extern const QuantizeFormatKernels quantize_format_kernels;
const QuantizeFormatKernels quantize_format_kernels{groups};

}  // namespace mto::MTO_ISA
