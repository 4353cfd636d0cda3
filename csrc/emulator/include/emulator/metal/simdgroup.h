#pragma once

#include "emulator/metal/array.h"
#include "emulator/metal/barrier.h"
#include "emulator/metal/vector_names.h"

// metal_simdgroup and metal_quadgroup (specification 4, section 6.9.2): every function is a meeting
// of the lanes of a simdgroup or quad.

EMU_SHIM_BEGIN

namespace emu {

// Unlike the functions below, operations on a matrix or tile that is spread over lanes need all of
// them: control flow must be uniform (specification 4, sections 6.7 and 2.20).
inline void require_lanes(int n_active, int needed) {
  if (n_active < needed) {
    report("missing_lanes",
           "not all threads of the scope take part in an operation on a whole tile");
  }
}

template <class T>
struct ShuffleSlot {
  T data, filling, result;
  int argument, modulo;
};

enum class Shuffle { kIndex, kXor, kDown, kUp, kFillDown, kFillUp, kRotateDown, kRotateUp };

// Where lane `i` reads from; negative numbers -1 - j stand for the filling of lane j.
template <Shuffle kind>
inline int shuffle_source(int i, int argument, int modulo, int width) {
  const int first = i / modulo * modulo, at = i - first;
  switch (kind) {
    case Shuffle::kIndex:
      return argument;
    case Shuffle::kXor:
      return i ^ argument;
    // Lanes without a source keep their own value.
    case Shuffle::kDown:
      return i + argument < width ? i + argument : i;
    case Shuffle::kUp:
      return i - argument >= 0 ? i - argument : i;
    case Shuffle::kFillDown:
      return at + argument < modulo ? i + argument : -1 - (first + at + argument - modulo);
    case Shuffle::kFillUp:
      return at - argument >= 0 ? i - argument : -1 - (first + at - argument + modulo);
    case Shuffle::kRotateDown:
      return (i + argument) % width;
    case Shuffle::kRotateUp:
      return ((i - argument) % width + width) % width;
  }
}

template <class T, Shuffle kind, int width>
void shuffle_lanes(void** slots, int n, int) {
  for (int i = 0; i < n; i++) {
    if (slots[i] == nullptr) continue;
    auto* slot = static_cast<ShuffleSlot<T>*>(slots[i]);
    const int source = shuffle_source<kind>(i, slot->argument, slot->modulo, width);
    const int lane = source < 0 ? -1 - source : source;
    if (lane >= n || slots[lane] == nullptr) {
      // Undefined in Metal. Legal as long as nobody uses the value, hence a note and poison.
      note("inactive_lane", "a shuffle reads a lane that is not active; the value is undefined");
      __builtin_memset(static_cast<void*>(&slot->result), 0xff, sizeof(T));
      forget(&slot->result, sizeof(T), "a value of an inactive lane");
      continue;
    }
    const auto* from = static_cast<const ShuffleSlot<T>*>(slots[lane]);
    slot->result = source < 0 ? from->filling : from->data;
  }
}

template <Shuffle kind, int width, class T>
inline T shuffle(const T& data, const T& filling, int argument, int modulo, const char* what,
                 int line) {
  ShuffleSlot<T> slot;
  slot.data = data;
  slot.filling = filling;
  slot.argument = argument;
  slot.modulo = modulo;
  rendezvous(width == 4 ? kQuad : kSimdgroup, shuffle_lanes<T, kind, width>, &slot, what, line);
  return slot.result;
}

enum class Fold { kSum, kProduct, kMax, kMin, kAnd, kOr, kXor, kFirst };

template <Fold fold, class T>
inline T bits_folded(const T& a, const T& b) {
  unsigned char first[sizeof(T)], second[sizeof(T)];
  __builtin_memcpy(first, &a, sizeof(T));
  __builtin_memcpy(second, &b, sizeof(T));
  for (size_t i = 0; i < sizeof(T); i++) {
    first[i] = static_cast<unsigned char>(fold == Fold::kAnd  ? first[i] & second[i]
                                          : fold == Fold::kOr ? first[i] | second[i]
                                                              : first[i] ^ second[i]);
  }
  T result;
  __builtin_memcpy(&result, first, sizeof(T));
  return result;
}
template <Fold fold, class T>
inline T folded(const T& a, const T& b) {
  if constexpr (fold == Fold::kFirst) {
    return a;
  } else if constexpr (fold == Fold::kSum) {
    return a + b;
  } else if constexpr (fold == Fold::kProduct) {
    return a * b;
  } else if constexpr (fold == Fold::kMax) {
    return metal::max(a, b);
  } else if constexpr (fold == Fold::kMin) {
    return metal::min(a, b);
  } else if constexpr (!metal::is_integral_v<T>) {
    // Only __metal_simd_xor and its like reach this, from MLX's bf16_math.h: bitwise there too.
    return bits_folded<fold>(a, b);
  } else if constexpr (fold == Fold::kAnd) {
    return a & b;
  } else if constexpr (fold == Fold::kOr) {
    return a | b;
  } else {
    return a ^ b;
  }
}

template <class T>
struct FoldSlot {
  T data, result;
};

// The order of a floating-point sum is unspecified: a tree here, as hardware does it.
template <class T, Fold fold, int width>
void reduce_lanes(void** slots, int n, int) {
  T values[width];
  bool active[width];
  for (int i = 0; i < width; i++) {
    active[i] = i < n && slots[i] != nullptr;
    if (active[i]) values[i] = static_cast<FoldSlot<T>*>(slots[i])->data;
  }
  for (int step = 1; step < width; step *= 2) {
    for (int i = 0; i < width; i += 2 * step) {
      if (active[i] && active[i + step]) {
        values[i] = static_cast<T>(folded<fold>(values[i], values[i + step]));
      } else if (active[i + step]) {
        values[i] = values[i + step];
        active[i] = true;
      }
    }
  }
  for (int i = 0; i < n; i++) {
    if (slots[i] != nullptr) static_cast<FoldSlot<T>*>(slots[i])->result = values[0];
  }
}

template <class T, Fold fold, bool inclusive>
void scan_lanes(void** slots, int n, int) {
  T sum = static_cast<T>(fold == Fold::kProduct ? 1 : 0);
  for (int i = 0; i < n; i++) {
    if (slots[i] == nullptr) continue;
    auto* slot = static_cast<FoldSlot<T>*>(slots[i]);
    const T next = static_cast<T>(folded<fold>(sum, slot->data));
    slot->result = inclusive ? next : sum;
    sum = next;
  }
}

template <class T>
inline T fold_meeting(Scope scope, Compute compute, const T& data, const char* what, int line) {
  FoldSlot<T> slot;
  slot.data = data;
  rendezvous(scope, compute, &slot, what, line);
  return slot.result;
}

struct MaskSlot {
  bool vote;
  uint64_t votes, active;
};
inline void collect_votes(void** slots, int n, int) {
  uint64_t votes = 0, active = 0;
  for (int i = 0; i < n; i++) {
    if (slots[i] == nullptr) continue;
    active |= 1ull << i;
    votes |= static_cast<uint64_t>(static_cast<MaskSlot*>(slots[i])->vote) << i;
  }
  for (int i = 0; i < n; i++) {
    if (slots[i] == nullptr) continue;
    static_cast<MaskSlot*>(slots[i])->votes = votes;
    static_cast<MaskSlot*>(slots[i])->active = active;
  }
}
inline MaskSlot vote(Scope scope, bool value, const char* what, int line,
                     Expects expects = kAllLanes) {
  MaskSlot slot{value, 0, 0};
  rendezvous(scope, collect_votes, &slot, what, line, expects);
  return slot;
}

// Any scalar or vector except bool and 64-bit integers (specification 4, section 6.9.2). bfloat is
// left out because MLX supplies those overloads itself, through uint16_t and float.
template <class T>
constexpr bool in_registers = is_scalar_number<element_of<T>> && !__is_same(element_of<T>, bool) &&
                              !__is_same(element_of<T>, bfloat) && sizeof(element_of<T>) <= 4;

}  // namespace emu

#define EMU_SHUFFLE(name, kind, width, modulo)                                                 \
  template <class T, metal::enable_if_t<emu::in_registers<T>, int> = 0>                        \
  inline T name(T data, ushort argument, int line = __builtin_LINE()) {                        \
    return emu::shuffle<emu::Shuffle::kind, width>(data, data, argument, modulo, #name, line); \
  }
#define EMU_FILL(name, kind, width)                                                            \
  template <class T, metal::enable_if_t<emu::in_registers<T>, int> = 0>                        \
  inline T name(T data, T filling, ushort delta, ushort modulo = width,                        \
                int line = __builtin_LINE()) {                                                 \
    return emu::shuffle<emu::Shuffle::kind, width>(data, filling, delta, modulo, #name, line); \
  }
#define EMU_REDUCE(name, fold, width, allowed)                                                    \
  template <class T, metal::enable_if_t<emu::in_registers<T> && (allowed), int> = 0>              \
  inline T name(T data, int line = __builtin_LINE()) {                                            \
    return emu::fold_meeting<T>(width == 4 ? emu::kQuad : emu::kSimdgroup,                        \
                                emu::reduce_lanes<T, emu::Fold::fold, width>, data, #name, line); \
  }
#define EMU_SCAN(name, fold, inclusive, scope)                                               \
  template <class T, metal::enable_if_t<emu::in_registers<T>, int> = 0>                      \
  inline T name(T data, int line = __builtin_LINE()) {                                       \
    return emu::fold_meeting<T>(scope, emu::scan_lanes<T, emu::Fold::fold, inclusive>, data, \
                                #name, line);                                                \
  }
// `prefix` is simd or quad, or one of these after __metal_: Apple's headers build the public
// functions on builtins of such names, and MLX's bf16_math.h calls them.
#define EMU_COLLECTIVES(prefix, width, scope, has_bits)                \
  EMU_SHUFFLE(prefix##_shuffle, kIndex, width, width)                  \
  EMU_SHUFFLE(prefix##_broadcast, kIndex, width, width)                \
  EMU_SHUFFLE(prefix##_shuffle_xor, kXor, width, width)                \
  EMU_SHUFFLE(prefix##_shuffle_down, kDown, width, width)              \
  EMU_SHUFFLE(prefix##_shuffle_up, kUp, width, width)                  \
  EMU_SHUFFLE(prefix##_shuffle_rotate_down, kRotateDown, width, width) \
  EMU_SHUFFLE(prefix##_shuffle_rotate_up, kRotateUp, width, width)     \
  EMU_FILL(prefix##_shuffle_and_fill_down, kFillDown, width)           \
  EMU_FILL(prefix##_shuffle_and_fill_up, kFillUp, width)               \
  EMU_REDUCE(prefix##_sum, kSum, width, true)                          \
  EMU_REDUCE(prefix##_product, kProduct, width, true)                  \
  EMU_REDUCE(prefix##_max, kMax, width, true)                          \
  EMU_REDUCE(prefix##_min, kMin, width, true)                          \
  EMU_REDUCE(prefix##_and, kAnd, width, has_bits)                      \
  EMU_REDUCE(prefix##_or, kOr, width, has_bits)                        \
  EMU_REDUCE(prefix##_xor, kXor, width, has_bits)                      \
  EMU_REDUCE(prefix##_broadcast_first, kFirst, width, true)            \
  EMU_SCAN(prefix##_prefix_inclusive_sum, kSum, true, scope)           \
  EMU_SCAN(prefix##_prefix_exclusive_sum, kSum, false, scope)          \
  EMU_SCAN(prefix##_prefix_inclusive_product, kProduct, true, scope)   \
  EMU_SCAN(prefix##_prefix_exclusive_product, kProduct, false, scope)

EMU_COLLECTIVES(__metal_simd, 32, emu::kSimdgroup, true)
EMU_COLLECTIVES(__metal_quad, 4, emu::kQuad, true)

namespace metal {

EMU_COLLECTIVES(simd, 32, emu::kSimdgroup, is_integral_v<T>)
EMU_COLLECTIVES(quad, 4, emu::kQuad, is_integral_v<T>)

#define EMU_VOTES(prefix, bits, scope)                                                         \
  class prefix##_vote {                                                                        \
   public:                                                                                     \
    using vote_t = bits;                                                                       \
    constexpr explicit prefix##_vote(vote_t v = 0, vote_t active = static_cast<vote_t>(~0ull)) \
        : votes(v), mask(active) {}                                                            \
    constexpr explicit operator vote_t() const { return votes; }                               \
    constexpr bool all() const { return votes == mask; }                                       \
    constexpr bool any() const { return votes != 0; }                                          \
                                                                                               \
   private:                                                                                    \
    vote_t votes, mask;                                                                        \
  };                                                                                           \
  inline prefix##_vote prefix##_ballot(bool value, int line = __builtin_LINE()) {              \
    const emu::MaskSlot slot = emu::vote(scope, value, #prefix "_ballot", line);               \
    return prefix##_vote(static_cast<bits>(slot.votes), static_cast<bits>(slot.active));       \
  }                                                                                            \
  inline prefix##_vote prefix##_active_threads_mask(int line = __builtin_LINE()) {             \
    const emu::MaskSlot slot =                                                                 \
        emu::vote(scope, true, #prefix "_active_threads_mask", line, emu::kAnyLanes);          \
    return prefix##_vote(static_cast<bits>(slot.active), static_cast<bits>(slot.active));      \
  }                                                                                            \
  inline bool prefix##_all(bool value, int line = __builtin_LINE()) {                          \
    const emu::MaskSlot slot = emu::vote(scope, value, #prefix "_all", line);                  \
    return slot.votes == slot.active;                                                          \
  }                                                                                            \
  inline bool prefix##_any(bool value, int line = __builtin_LINE()) {                          \
    return emu::vote(scope, value, #prefix "_any", line).votes != 0;                           \
  }                                                                                            \
  inline bool prefix##_is_first(int line = __builtin_LINE()) {                                 \
    const uint64_t active =                                                                    \
        emu::vote(scope, true, #prefix "_is_first", line, emu::kAnyLanes).active;              \
    const uint32_t lane = emu::cur_lane()->lane % (scope == emu::kQuad ? 4 : emu::kLanes);     \
    return static_cast<uint32_t>(__builtin_ctzll(active)) == lane;                             \
  }
EMU_VOTES(simd, uint64_t, emu::kSimdgroup)
EMU_VOTES(quad, uint, emu::kQuad)
#undef EMU_VOTES

}  // namespace metal

#undef EMU_COLLECTIVES
#undef EMU_SHUFFLE
#undef EMU_FILL
#undef EMU_REDUCE
#undef EMU_SCAN

EMU_SHIM_END
