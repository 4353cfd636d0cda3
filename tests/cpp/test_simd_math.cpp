// The functions of vectors of one instruction set, and the verbs that they and attention rest on.

#include <algorithm>

#include "cpu/simd_math.h"
#include "harness.h"

namespace mto::MTO_ISA {
namespace {

using test::check;

template <typename F, typename Reference>
void test_units(const char* name, float low, float high, double units, F f, Reference reference) {
  double worst = 0;
  float at = 0, x[kLanes], out[kLanes];
  for (int round = 0; round < 100000 / kLanes; ++round) {
    for (float& value : x) value = test::uniform(low, high);
    store(out, f(load(x)));
    for (int l = 0; l < kLanes; ++l) {
      double expected = reference(static_cast<double>(x[l]));
      double unit = std::ldexp(1.0, std::ilogb(static_cast<float>(expected)) - 23);
      double error = std::fabs(out[l] - expected) / unit;
      if (error > worst) {
        worst = error;
        at = x[l];
      }
    }
  }
  check(worst <= units,
        std::string(name) + " is off by " + std::to_string(worst) + " at " + std::to_string(at));
}

float first_of(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  return lanes[0];
}

void test_functions() {
  auto exponential = [](double x) { return std::exp(x); };
  auto hyperbolic = [](double x) { return std::tanh(x); };
  test_units("exp", -87, 88, 2, [](Vec x) { return exp(x); }, exponential);
  test_units("exp", -1, 0, 2, [](Vec x) { return exp(x); }, exponential);
  test_units("tanh", -0.7f, 0.7f, 3, [](Vec x) { return tanh(x); }, hyperbolic);
  test_units("tanh", -12, 12, 3, [](Vec x) { return tanh(x); }, hyperbolic);
  check(first_of(exp(zero())) == 1, "exp of 0");
  check(first_of(exp(broadcast(-kInfinity))) == 0, "exp of -infinity");
  check(first_of(exp(broadcast(-87.5f))) == 0, "exp of -87.5");
  check(std::isnan(first_of(exp(broadcast(NAN)))), "exp of NaN");
  check(first_of(tanh(broadcast(kInfinity))) == 1, "tanh of infinity");
  check(first_of(tanh(broadcast(-kInfinity))) == -1, "tanh of -infinity");
  check(std::isnan(first_of(tanh(broadcast(NAN)))), "tanh of NaN");
}

void test_verbs() {
  float a[kLanes], b[kLanes], out[kLanes];
  for (int round = 0; round < 20000 / kLanes; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      a[l] = std::ldexp(test::uniform(-1, 1), static_cast<int>(test::rng()() % 60) - 30);
      b[l] = l % 2 ? a[l] : test::uniform(-1, 1);
    }
    auto each = [&](const char* name, Vec got, auto expected) {
      store(out, got);
      for (int l = 0; l < kLanes; ++l) check(out[l] == expected(a[l], b[l]), name);
    };
    Vec x = load(a), y = load(b);
    each("add", add(x, y), [](float x, float y) { return x + y; });
    each("mul", mul(x, y), [](float x, float y) { return x * y; });
    each("nearest", nearest(x), [](float x, float) { return std::nearbyint(x); });
    each("select", select(x, y, x, zero()), [](float x, float y) { return x < y ? x : 0; });
    Vec power = nearest(mul(max(min(y, broadcast(1)), broadcast(-1)), broadcast(50)));
    each("scaled", scaled(x, power), [](float x, float y) {
      return x *
             std::ldexp(1.0f, static_cast<int>(std::nearbyint(std::clamp(y, -1.0f, 1.0f) * 50)));
    });
  }
}

void test_parts() {
  for (auto type : {FloatType::kFloat32, FloatType::kFloat16, FloatType::kBFloat16}) {
    for (int n = 1; n <= kLanes; ++n) {
      test::Guarded values(n * size_of(type));
      test::fill_exact(values, type, 1, 2);
      float out[kLanes];
      store(out, load_part(type, values.data(), 0, n));
      for (int l = 0; l < kLanes; ++l) {
        double expected = l < n ? test::read(type, values.data(), l) : 0;
        check(out[l] == expected, "load_part of " + std::to_string(n));
      }
    }
  }
}

template <int N>
void test_shifts() {
  uint32_t bits[kLanes], left[kLanes], right[kLanes];
  for (int l = 0; l < kLanes; ++l) bits[l] = static_cast<uint32_t>(test::rng()()) & 0x7fffffff;
  Vec v;
  std::memcpy(&v, bits, sizeof(v));
  Codes l = shift_left<N>(as_codes(v)), r = shift_right<N>(as_codes(v)), j = join(l, r);
  Codes low = low_bits<5>(as_codes(v));
  std::memcpy(left, &l, sizeof(l));
  std::memcpy(right, &r, sizeof(r));
  for (int i = 0; i < kLanes; ++i) {
    uint32_t joined, lowest_bits;
    std::memcpy(&joined, reinterpret_cast<const char*>(&j) + 4 * i, 4);
    std::memcpy(&lowest_bits, reinterpret_cast<const char*>(&low) + 4 * i, 4);
    check(left[i] == bits[i] << N && right[i] == bits[i] >> N, "shifts by " + std::to_string(N));
    check(joined == (left[i] | right[i]) && lowest_bits == (bits[i] & 31), "join and low_bits");
  }
}

void test_squares() {
  Vec square[kLanes];
  float out[kLanes];
  for (int i = 0; i < kLanes; ++i) square[i] = add(iota(), broadcast(100.0f * i));
  transpose(square);
  for (int i = 0; i < kLanes; ++i) {
    store(out, square[i]);
    for (int l = 0; l < kLanes; ++l) check(out[l] == 100.0f * l + i, "transpose");
  }
  float strided[3 * kLanes];
  for (int i = 0; i < 3 * kLanes; ++i) strided[i] = static_cast<float>(i);
  store(out, gather(strided, 3));
  for (int l = 0; l < kLanes; ++l) check(out[l] == 3.0f * l, "gather");
  check(total(iota()) == kLanes * (kLanes - 1) / 2, "total");
}

}  // namespace
}  // namespace mto::MTO_ISA

#define NAME_OF(isa) #isa
#define NAME(isa) NAME_OF(isa)

int main() {
  using namespace mto::MTO_ISA;
#if defined(MTO_ISA_avx512)
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq")) return 0;
#elif defined(MTO_ISA_avx2)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#endif
  test_functions();
  test_verbs();
  test_parts();
  test_shifts<0>();
  test_shifts<7>();
  test_shifts<29>();
  test_squares();
  return test::finish("simd math " NAME(MTO_ISA));
}
