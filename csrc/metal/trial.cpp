#include "metal/trial.h"

#include <mlx/primitives.h>

#include <cstring>
#include <sstream>

#include "common/counters.h"
#include "metal/emulation.h"

namespace mto::metal {
namespace {

template <typename T>
void print_as(std::ostream& out, const mx::array& a, int64_t i) {
  out << static_cast<double>(a.data<T>()[i]);
}

void print(std::ostream& out, const mx::array& a, int64_t i) {
  out.precision(9);
  if (a.dtype() == mx::float32) return print_as<float>(out, a, i);
  if (a.dtype() == mx::float16) return print_as<mx::float16_t>(out, a, i);
  if (a.dtype() == mx::bfloat16) return print_as<mx::bfloat16_t>(out, a, i);
  out << "0x" << std::hex << a.data<uint32_t>()[i] << std::dec;
}

std::string position(const mx::Shape& shape, int64_t i) {
  std::string out;
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
    out = std::to_string(i % *size) + (out.empty() ? "" : ", ") + out;
    i /= *size;
  }
  return "(" + out + ")";
}

// Both are row-contiguous.
std::string difference(const mx::array& found, const mx::array& expected) {
  auto *ours = found.data<char>(), *theirs = expected.data<char>();
  size_t item = found.itemsize();
  int64_t n_different = 0, first = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(found.size()); ++i) {
    if (std::memcmp(ours + i * item, theirs + i * item, item) == 0) continue;
    if (n_different++ == 0) first = i;
  }
  if (n_different == 0) return "";
  std::ostringstream out;
  out << n_different << " of " << found.size() << " values are wrong, at "
      << position(found.shape(), first) << " ";
  print(out, found, first);
  out << " instead of ";
  print(out, expected, first);
  return out.str();
}

mx::array key(uint64_t seed) { return mx::random::key(seed); }

}  // namespace

std::vector<mx::array> outputs_of(const mx::array& a, const std::vector<mx::array>& inputs,
                                  mx::Stream stream) {
  auto primitive = dynamic_cast<MetalPrimitive&>(a.primitive()).on(stream);
  std::vector<mx::Dtype> dtypes;
  for (const auto& output : a.outputs()) dtypes.push_back(output.dtype());
  auto shapes = primitive->output_shapes(inputs);
  return mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
}

std::string run_trial(const mx::array& a, const std::vector<mx::array>& inputs) {
  Uncounted uncounted;
  std::vector<mx::array> expected;
  {
    WithoutEmulation cpu;
    expected = outputs_of(a, inputs, trial_stream());
    mx::eval(expected);
  }
  auto found = outputs_of(a, inputs, a.primitive().stream());
  mx::eval(found);
  for (size_t i = 0; i < found.size(); ++i) {
    auto what = difference(found[i], expected[i]);
    if (!what.empty())
      return found.size() == 1 ? what : "output " + std::to_string(i) + ": " + what;
  }
  return "";
}

mx::Stream trial_stream() { return mx::default_stream(mx::Device::cpu); }

mx::array trial_words(const mx::Shape& shape, uint64_t seed) {
  return mx::random::bits(shape, 4, key(seed), trial_stream());
}

mx::array trial_normal(const mx::Shape& shape, mx::Dtype dtype, uint64_t seed) {
  return mx::random::normal(shape, dtype, 0.0f, 1.0f, key(seed), trial_stream());
}

mx::array trial_integers(int low, int high, const mx::Shape& shape, mx::Dtype dtype,
                         uint64_t seed) {
  auto integers = mx::random::randint(mx::array(low), mx::array(high + 1), shape, mx::int32,
                                      key(seed), trial_stream());
  return mx::astype(integers, dtype, trial_stream());
}

}  // namespace mto::metal
