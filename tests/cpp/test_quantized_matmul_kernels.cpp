// The product kernels of every instruction set: against a double reference, with inputs that end at
// an unmapped page; a row alone against the same row in a tile, bit for bit.

#include <algorithm>
#include <vector>

#include "formats/affine.h"
#include "harness.h"
#include "ops/quantized_matmul/quantized_matmul_kernels.h"
#include "ops/quantized_matmul/quantized_matmul_tiles.h"

using namespace mto;
using test::check;

namespace {

struct Case {
  int64_t m, n, k;
  int bits, group_size;
  bool transpose;
  FloatType x_type, scales_type, biases_type;
  std::string name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " bits " +
           std::to_string(bits) + " group " + std::to_string(group_size) +
           (transpose ? " t " : " n ") + test::name_of(x_type) + " " + test::name_of(scales_type) +
           " " + test::name_of(biases_type);
  }
};

struct Problem {
  explicit Problem(const Case& c)
      : x(c.m * c.k * size_of(c.x_type)),
        w(affine_row_bytes(c.n * c.k, c.bits)),
        scales(c.n * c.k / c.group_size * size_of(c.scales_type)),
        biases(c.n * c.k / c.group_size * size_of(c.biases_type)),
        y(c.m * c.n * size_of(c.x_type)) {
    test::fill_exact(x, c.x_type, -1, 1);
    test::fill_bytes(w);
    test::fill_exact(scales, c.scales_type, -0.1f, 0.1f);
    test::fill_exact(biases, c.biases_type, -1, 1);
    params = {x.data(),      w.data<uint8_t>(), scales.data(), biases.data(), y.data(), c.x_type,
              c.scales_type, c.biases_type,     c.m,           c.n,           c.k,      c.bits,
              c.group_size,  c.transpose};
  }
  double weight(int64_t k, int64_t n) const {
    const auto& p = params;
    int64_t at = p.transpose ? n * p.k + k : k * p.n + n;
    return test::read(p.scales_type, p.scales, at / p.group_size) * test::code_at(p.w, at, p.bits) +
           test::read(p.biases_type, p.biases, at / p.group_size);
  }
  test::Guarded x, w, scales, biases, y;
  QuantizedMatmulParams params;
};

void run_tiles(const QuantizedMatmulKernels& kernels, const QuantizedMatmulParams& p) {
  int64_t cols = tile_cols(p.transpose);
  for (int64_t m = 0; m < p.m; m += kTileRows) {
    for (int64_t n = 0; n < p.n; n += cols) {
      kernels.tile(p, {m, std::min(m + kTileRows, p.m)}, {n, std::min(n + cols, p.n)});
    }
  }
}

// Row by row, or `rows` at a time.
void run_few_rows(const QuantizedMatmulKernels& kernels, const QuantizedMatmulParams& p,
                  int64_t rows) {
  int64_t cols = few_rows_cols(p.transpose);
  for (int64_t m = 0; m < p.m; m += rows) {
    auto part = p;
    part.m = std::min(rows, p.m - m);
    part.x = static_cast<const char*>(p.x) + m * p.k * size_of(p.x_type);
    part.y = static_cast<char*>(p.y) + m * p.n * size_of(p.x_type);
    test::Guarded x_f32(part.m * p.k * sizeof(float));
    kernels.convert(p.x_type, part.x, part.m * p.k, x_f32.data<float>());
    for (int64_t n = 0; n < p.n; n += cols) {
      kernels.few_rows(part, x_f32.data<float>(), {n, std::min(n + cols, p.n)});
    }
  }
}

void check_values(const Problem& problem, const std::string& name) {
  const auto& p = problem.params;
  double epsilon = p.x_type == FloatType::kFloat32   ? 0
                   : p.x_type == FloatType::kFloat16 ? 0x1p-11
                                                     : 0x1p-8;
  for (int64_t m = 0; m < p.m; m += std::max<int64_t>(1, p.m / 5)) {
    for (int64_t n = 0; n < p.n; n += std::max<int64_t>(1, p.n / 7)) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        double term = test::read(p.x_type, p.x, m * p.k + k) * problem.weight(k, n);
        sum += term;
        size += std::fabs(term);
      }
      // Rounding of the weight and of each addition (a chain of k of them), then of the output.
      double budget = size * (p.k + 2) * 0x1p-24 + std::fabs(sum) * epsilon;
      double error = std::fabs(test::read(p.x_type, p.y, m * p.n + n) - sum);
      check(error <= budget, name + " at " + std::to_string(m) + ", " + std::to_string(n));
    }
  }
}

void test_case(Isa isa, const Case& c) {
  const auto& kernels = quantized_matmul_kernels(isa);
  auto name = std::string(isa_name(isa)) + " " + c.name();
  Problem problem(c);
  const char* y = problem.y.data();
  std::memset(problem.y.data(), 0xff, problem.y.n_bytes());
  run_tiles(kernels, problem.params);
  check_values(problem, name + " tiles");
  std::vector<char> tiles(y, y + problem.y.n_bytes());
  for (int64_t rows : {1, kernels.few_rows_max}) {
    std::memset(problem.y.data(), 0xff, problem.y.n_bytes());
    run_few_rows(kernels, problem.params, rows);
    check(std::equal(tiles.begin(), tiles.end(), y), name + " rows by " + std::to_string(rows));
  }
  check(problem.y.intact(), name + " writes before the output");
}

}  // namespace

int main() {
  constexpr FloatType kTypes[] = {FloatType::kFloat32, FloatType::kFloat16, FloatType::kBFloat16};
  for (Isa isa : available_isas()) {
    int i = 0;
    for (int bits : kAffineBits) {
      for (int group_size : kAffineGroupSizes) {
        auto type = [&](int shift) { return kTypes[(i + shift) % 3]; };
        // N = 1, 7, 96; more rows than a tile; k longer than a tile is deep.
        test_case(isa, {1, 7, 2 * group_size, bits, group_size, true, type(0), type(1), type(2)});
        test_case(isa, {131, 1, 640, bits, group_size, true, type(1), type(1), type(0)});
        test_case(isa, {9, 96, 1280, bits, group_size, true, type(2), type(0), type(0)});
        test_case(isa, {3, 3 * group_size, 1, bits, group_size, false, type(0), type(0), type(1)});
        test_case(isa, {131, group_size, 67, bits, group_size, false, type(1), type(2), type(2)});
        test_case(isa, {8, 384, 130, bits, group_size, false, type(2), type(1), type(0)});
        ++i;
      }
    }
  }
  return test::finish("quantized_matmul kernels");
}
