// The vector verbs of one instruction set: conversions over all halves, rounding, packing and
// unpacking, sums and extremes.

#include <algorithm>

#include "cpu/simd.h"
#include "formats/affine_simd.h"
#include "harness.h"

namespace mto::MTO_ISA {
namespace {

using test::check;

bool same(float a, double b) { return std::isnan(b) ? std::isnan(a) : a == static_cast<float>(b); }

void test_halves_to_float(FloatType type) {
  constexpr int kAll = 1 << 16;
  test::Guarded halves(2 * kAll);
  for (int i = 0; i < kAll; ++i) halves.data<uint16_t>()[i] = static_cast<uint16_t>(i);
  float out[kLanes];
  for (int i = 0; i < kAll; i += kLanes) {
    store(out, load_as(type, halves.data(), i));
    for (int l = 0; l < kLanes; ++l) {
      double expected = test::half_value(type, static_cast<uint16_t>(i + l));
      check(same(out[l], expected),
            std::string("load_as ") + test::name_of(type) + " " + std::to_string(i + l));
      check(same(load_one(type, halves.data(), i + l), expected),
            "load_one " + std::to_string(i + l));
    }
  }
}

// The nearest half, ties to even, found by bisection over the ordered positive halves.
uint16_t nearest(FloatType type, float value) {
  if (std::isnan(value)) return 0x7fff;
  double magnitude = std::fabs(value);
  uint16_t infinity = type == FloatType::kFloat16 ? 0x7c00 : 0x7f80;
  uint16_t low = 0, high = infinity;
  while (high - low > 1) {
    uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (test::half_value(type, middle) <= magnitude ? low : high) = middle;
  }
  double below = test::half_value(type, low),
         step = below - test::half_value(type, low - (low > 0));
  double above = high == infinity ? below + step : test::half_value(type, high);
  double middle = (below + above) / 2;
  uint16_t chosen = magnitude < middle ? low : magnitude > middle ? high : low & 1 ? high : low;
  return static_cast<uint16_t>(chosen | (std::signbit(value) ? 0x8000 : 0));
}

void test_float_to_halves(FloatType type) {
  float values[kLanes];
  for (int round = 0; round < 20000 / kLanes; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      uint32_t bits = static_cast<uint32_t>(test::rng()());
      // Every other one a tie or next to a tie of one of the two types.
      if (l % 2) bits = (bits & 0xffff0000u) | (bits & 0x10000u ? 0x8000u : 0x1000u) | (bits & 1u);
      std::memcpy(&values[l], &bits, 4);
    }
    test::Guarded out(2 * kLanes), singles(2 * kLanes);
    store_as(type, out.data(), 0, load(values));
    for (int l = 0; l < kLanes; ++l) {
      uint16_t expected = nearest(type, values[l]), got = out.data<uint16_t>()[l];
      store_one(type, singles.data(), l, values[l]);
      bool ok = std::isnan(values[l]) ? std::isnan(test::half_value(type, got)) : got == expected;
      check(ok,
            std::string("store_as ") + test::name_of(type) + " of " + std::to_string(values[l]));
      uint16_t single = singles.data<uint16_t>()[l];
      ok = std::isnan(values[l]) ? std::isnan(test::half_value(type, single)) : single == expected;
      check(ok,
            std::string("store_one ") + test::name_of(type) + " of " + std::to_string(values[l]));
    }
  }
}

template <int Bits>
void test_decode() {
  for (int round = 0; round < 200; ++round) {
    test::Guarded block(block_bytes(Bits));
    test::fill_bytes(block);
    float scale = test::uniform(-1, 1), bias = test::uniform(-1, 1), out[kLanes];
    auto group = AffineGroup<Bits>::make(scale, bias);
    unroll<kVecsPerBlock>([&](auto v) {
      store(out, affine_decode<Bits, v.value>(block.data<uint8_t>(), group));
      for (int l = 0; l < kLanes; ++l) {
        uint32_t code = test::code_at(block.data<uint8_t>(), v.value * kLanes + l, Bits);
        float expected = static_cast<float>(static_cast<double>(scale) * code + bias);
        check(out[l] == expected,
              "decode of " + std::to_string(Bits) + " bits, lane " + std::to_string(l));
      }
    });
  }
}

// Of any magnitude, and often infinite, NaN or a zero. Not a signalling NaN, which compilers take
// for a quiet one.
float any_float() {
  constexpr float kSpecial[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN};
  auto bits = static_cast<uint32_t>(test::rng()());
  float value = bits % 4 == 0 ? kSpecial[test::rng()() % 5] : float_of(bits);
  return std::isnan(value) ? NAN : value;
}

void check_lanes(const char* name, Vec got, const float* expected) {
  float out[kLanes];
  store(out, got);
  for (int l = 0; l < kLanes; ++l) {
    bool ok =
        std::isnan(expected[l]) ? std::isnan(out[l]) : bits_of(out[l]) == bits_of(expected[l]);
    check(ok, std::string(name) + " gives " + std::to_string(out[l]) + " for " +
                  std::to_string(expected[l]));
  }
}

void test_arithmetic() {
  float a[kLanes], b[kLanes], differences[kLanes], quotients[kLanes], lower[kLanes], higher[kLanes];
  for (int round = 0; round < 20000 / kLanes; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      a[l] = any_float();
      b[l] = any_float();
      differences[l] = a[l] - b[l];
      quotients[l] = a[l] / b[l];
      lower[l] = a[l] < b[l] ? a[l] : b[l];
      higher[l] = a[l] > b[l] ? a[l] : b[l];
    }
    check_lanes("sub", sub(load(a), load(b)), differences);
    check_lanes("div", div(load(a), load(b)), quotients);
    check_lanes("min", min(load(a), load(b)), lower);
    check_lanes("max", max(load(a), load(b)), higher);
  }
}

void test_extremes() {
  float values[kLanes];
  for (int round = 0; round < 2000; ++round) {
    float low = INFINITY, high = -INFINITY;
    for (float& value : values) {
      do value = any_float();
      while (std::isnan(value));
      low = std::min(low, value);
      high = std::max(high, value);
    }
    check(lowest(load(values)) == low, "lowest of " + std::to_string(low));
    check(highest(load(values)) == high, "highest of " + std::to_string(high));
  }
}

template <int Bits>
void test_encode() {
  constexpr float kMax = (1 << Bits) - 1;
  for (int round = 0; round < 200; ++round) {
    float values[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      float value = test::uniform(-2, kMax + 2);
      values[i] = i % 4 == 0 ? any_float() : i % 4 == 1 ? std::floor(value) + 0.5f : value;
    }
    Codes codes[kVecsPerBlock];
    for (int v = 0; v < kVecsPerBlock; ++v) codes[v] = to_codes<Bits>(load(values + v * kLanes));
    test::Guarded block(block_bytes(Bits));
    pack<Bits>(codes, block.data<uint8_t>());
    for (int i = 0; i < kBlock; ++i) {
      float expected = values[i] > 0 ? std::min(std::nearbyint(values[i]), kMax) : 0.0f;
      check(test::code_at(block.data<uint8_t>(), i, Bits) == static_cast<uint32_t>(expected),
            std::to_string(Bits) + " bits of " + std::to_string(values[i]));
    }
    check(block.intact(), "pack of " + std::to_string(Bits) + " bits");
  }
}

template <int... Bits>
void test_codes() {
  (test_decode<Bits>(), ...);
  (test_encode<Bits>(), ...);
}

void test_reduce4() {
  float values[4][kLanes], out[4], again[4];
  for (int round = 0; round < 200; ++round) {
    for (auto& row : values) {
      for (float& value : row) value = std::ldexp(std::round(test::uniform(-64, 64)), -3);
    }
    reduce4(load(values[0]), load(values[1]), load(values[2]), load(values[3]), out);
    reduce4(load(values[3]), load(values[2]), load(values[1]), load(values[0]), again);
    for (int i = 0; i < 4; ++i) {
      float sum = 0;
      for (float value : values[i]) sum += value;  // exact: small multiples of 1/8
      check(out[i] == sum && again[3 - i] == sum, "reduce4");
    }
  }
}

}  // namespace
}  // namespace mto::MTO_ISA

#define NAME_OF(isa) #isa
#define NAME(isa) NAME_OF(isa)

int main() {
  using namespace mto::MTO_ISA;
#if defined(__x86_64__)
#if defined(MTO_ISA_avx512)
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq")) {
    std::printf("simd avx512: this processor has none\n");
    return 0;
  }
#elif defined(MTO_ISA_avx2)
  if (!__builtin_cpu_supports("avx2")) {
    std::printf("simd avx2: this processor has none\n");
    return 0;
  }
#endif
#endif
  for (auto type : {mto::FloatType::kFloat16, mto::FloatType::kBFloat16}) {
    test_halves_to_float(type);
    test_float_to_halves(type);
  }
  test_codes<1, 2, 3, 4, 5, 6, 8>();
  test_arithmetic();
  test_extremes();
  test_reduce4();
  return test::finish("simd " NAME(MTO_ISA));
}
