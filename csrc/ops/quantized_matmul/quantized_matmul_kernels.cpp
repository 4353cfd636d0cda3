// y = x @ dequantize(w).T (transposed) or x @ dequantize(w), weights decoded in registers or cache.
//
// Accumulation is in float32, in one order over k that the number of rows does not change; see
// quantized_matmul_t.h and quantized_matmul_n.h. A weight is fma(code, scale, bias), rounded once
// to float32; x is converted to float32 exactly; the sum is rounded once to the type of y. Blocking
// after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34(3),
// 2008.

#include "ops/quantized_matmul/quantized_matmul_kernels.h"

#include "ops/quantized_matmul/quantized_matmul_format_kernels.h"

namespace mto::MTO_ISA {
namespace {

void few_rows(const Params& p, const float* x, Range n) {
  dispatch_affine_bits(p.bits, [&]<int Bits>() {
    with_rows<kFewRows>(p.m, [&](auto rows) {
      (p.transpose ? few_rows_t<Bits, rows.value> : few_rows_n<Bits, rows.value>)(p, x, n);
    });
  });
}

void tile(const Params& p, Range m, Range n) {
  dispatch_affine_bits(p.bits,
                       [&]<int Bits>() { (p.transpose ? tile_t<Bits> : tile_n<Bits>)(p, m, n); });
}

void few_rows_format(const FormatProduct& p, const float* x, int64_t stride, Range n) {
  with_rows<kFewRows>(p.product.m, [&](auto rows) {
    auto run = p.product.transpose ? few_rows_format_t<rows.value> : few_rows_format_n<rows.value>;
    run(p, x, stride, n);
  });
}

void tile_format(const FormatProduct& p, Range m, Range n) {
  (p.product.transpose ? tile_format_t : tile_format_n)(p, m, n);
}

void convert(FloatType type, const void* x, int64_t n, float* out) {
  convert_to_float(type, x, 0, n, out);
}

}  // namespace

extern const QuantizedMatmulKernels quantized_matmul_kernels;
const QuantizedMatmulKernels quantized_matmul_kernels{few_rows,        tile,        convert,
                                                      few_rows_format, tile_format, kFewRows};

}  // namespace mto::MTO_ISA
