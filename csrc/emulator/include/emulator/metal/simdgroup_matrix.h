#pragma once

#include "emulator/metal/simdgroup.h"

// metal_simdgroup_matrix (specification 4, section 6.7): 8x8 matrices held by a simdgroup.
// The specification leaves open which lane holds which element. MLX's steel/gemm/mma.h relies on
// the mapping below: every lane holds two neighbours of one row.

EMU_SHIM_BEGIN

namespace emu {

constexpr int kMatrixSize = 8, kMatrixElements = 2;

inline int matrix_row(int lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline int matrix_column(int lane, int element) {
  return (lane / 4 & 2) * 2 + lane % 2 * 2 + element;
}

}  // namespace emu

namespace metal {

template <class T, int Cols, int Rows = Cols>
struct simdgroup_matrix {
  static_assert(Cols == emu::kMatrixSize && Rows == emu::kMatrixSize,
                "simdgroup_matrix has 8 rows and 8 columns");
  static_assert(emu::is_scalar_float<T>, "simdgroup_matrix holds half, bfloat or float");
  using storage_type = vec<T, emu::kMatrixElements>;

  // Uninitialised in Metal: NaN, so that a use shows.
  simdgroup_matrix() : elements(numeric_limits<T>::quiet_NaN()) {
    emu::forget(&elements, sizeof(elements), "a simdgroup_matrix");
  }
  // A diagonal matrix.
  explicit simdgroup_matrix(T diagonal) {
    const int lane = static_cast<int>(emu::cur_lane()->lane);
    for (int i = 0; i < emu::kMatrixElements; i++) {
      const bool on = emu::matrix_row(lane) == emu::matrix_column(lane, i);
      elements.d[i] = on ? diagonal : static_cast<T>(0);
    }
  }

  storage_type& thread_elements() { return elements; }
  const storage_type& thread_elements() const { return elements; }

 private:
  storage_type elements;
};

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int Cols, int Rows = Cols>
inline simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Cols, Rows> result;
  result.thread_elements() = vec<T, emu::kMatrixElements>(value);
  return result;
}

}  // namespace metal

namespace emu {

struct MatrixMemory {
  const void* pointer;
  ulong stride, x, y;
  bool transposed;
};
inline void check_uniform(void** slots, int n, int n_active) {
  require_lanes(n_active, kLanes);
  const MatrixMemory* first = nullptr;
  for (int i = 0; i < n; i++) {
    if (slots[i] == nullptr) continue;
    const auto* slot = static_cast<const MatrixMemory*>(slots[i]);
    if (first == nullptr) first = slot;
    if (slot->pointer != first->pointer || slot->stride != first->stride || slot->x != first->x ||
        slot->y != first->y || slot->transposed != first->transposed) {
      report("matrix_not_uniform", "the lanes name different memory for one simdgroup_matrix");
      return;
    }
  }
}

template <class T>
inline T* matrix_element(T* pointer, const MatrixMemory& from, int lane, int element) {
  int row = matrix_row(lane), column = matrix_column(lane, element);
  if (from.transposed) {
    metal::swap(row, column);
  }
  return pointer + (from.y + static_cast<ulong>(row)) * from.stride + from.x +
         static_cast<ulong>(column);
}

template <class D, class A, class B, class C>
struct MatrixSlot {
  metal::vec<D, 2>* d;
  const metal::vec<A, 2>* a;
  const metal::vec<B, 2>* b;
  const metal::vec<C, 2>* c;
};

template <class T>
inline void gather_matrix(float (&to)[8][8], int lane, const metal::vec<T, 2>& elements) {
  for (int i = 0; i < kMatrixElements; i++) {
    to[matrix_row(lane)][matrix_column(lane, i)] = static_cast<float>(elements.d[i]);
  }
}

// Products and sums in float; one rounding to the type of the result.
template <class D, class A, class B, class C>
void multiply_matrices(void** slots, int n, int n_active) {
  require_lanes(n_active, kLanes);
  float a[8][8] = {}, b[8][8] = {}, d[8][8] = {};
  for (int lane = 0; lane < n; lane++) {
    if (slots[lane] == nullptr) continue;
    const auto* slot = static_cast<const MatrixSlot<D, A, B, C>*>(slots[lane]);
    gather_matrix(a, lane, *slot->a);
    gather_matrix(b, lane, *slot->b);
    if (slot->c != nullptr) gather_matrix(d, lane, *slot->c);
  }
  for (int i = 0; i < 8; i++) {
    for (int k = 0; k < 8; k++) {
#pragma clang loop vectorize(enable)
      for (int j = 0; j < 8; j++) d[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < n; lane++) {
    if (slots[lane] == nullptr) continue;
    const auto* slot = static_cast<const MatrixSlot<D, A, B, C>*>(slots[lane]);
    for (int i = 0; i < kMatrixElements; i++) {
      slot->d->d[i] = static_cast<D>(d[matrix_row(lane)][matrix_column(lane, i)]);
    }
  }
  counters().matmul_flops += 2 * 8 * 8 * 8;
  counters().simdgroup_matrix_flops += 2 * 8 * 8 * 8;
  counters().matmul_calls += 1;
}

}  // namespace emu

namespace metal {

template <class T, int Cols, int Rows>
inline void simdgroup_load(simdgroup_matrix<T, Cols, Rows>& d, const T* source,
                           ulong elements_per_row = Cols, ulong2 matrix_origin = ulong2(0ul),
                           bool transpose_matrix = false, int line = __builtin_LINE()) {
  emu::MatrixMemory slot{source, elements_per_row, matrix_origin.d[0], matrix_origin.d[1],
                         transpose_matrix};
  emu::rendezvous(emu::kSimdgroup, emu::check_uniform, &slot, "simdgroup_load", line);
  const int lane = static_cast<int>(emu::cur_lane()->lane);
  for (int i = 0; i < emu::kMatrixElements; i++) {
    const T* element = emu::matrix_element(source, slot, lane, i);
    emu::account(element, sizeof(T), false);
    d.thread_elements().d[i] = *element;
  }
}
template <class T, int Cols, int Rows>
inline void simdgroup_store(const simdgroup_matrix<T, Cols, Rows>& a, T* destination,
                            ulong elements_per_row = Cols, ulong2 matrix_origin = ulong2(0ul),
                            bool transpose_matrix = false, int line = __builtin_LINE()) {
  emu::MatrixMemory slot{destination, elements_per_row, matrix_origin.d[0], matrix_origin.d[1],
                         transpose_matrix};
  emu::rendezvous(emu::kSimdgroup, emu::check_uniform, &slot, "simdgroup_store", line);
  const int lane = static_cast<int>(emu::cur_lane()->lane);
  for (int i = 0; i < emu::kMatrixElements; i++) {
    T* element = emu::matrix_element(destination, slot, lane, i);
    emu::account(element, sizeof(T), true);
    *element = a.thread_elements().d[i];
  }
}

// The types may differ: ggml multiplies half matrices into a float one.
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                          const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b,
                                          const simdgroup_matrix<C, 8, 8>& c,
                                          int line = __builtin_LINE()) {
  emu::MatrixSlot<D, A, B, C> slot{&d.thread_elements(), &a.thread_elements(), &b.thread_elements(),
                                   &c.thread_elements()};
  emu::rendezvous(emu::kSimdgroup, emu::multiply_matrices<D, A, B, C>, &slot,
                  "simdgroup_multiply_accumulate", line);
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b, int line = __builtin_LINE()) {
  emu::MatrixSlot<D, A, B, D> slot{&d.thread_elements(), &a.thread_elements(), &b.thread_elements(),
                                   nullptr};
  emu::rendezvous(emu::kSimdgroup, emu::multiply_matrices<D, A, B, D>, &slot, "simdgroup_multiply",
                  line);
}
template <class T>
inline simdgroup_matrix<T, 8, 8> operator*(const simdgroup_matrix<T, 8, 8>& a,
                                           const simdgroup_matrix<T, 8, 8>& b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b, 0);
  return d;
}

}  // namespace metal

using metal::simdgroup_bfloat8x8;
using metal::simdgroup_float8x8;
using metal::simdgroup_half8x8;

EMU_SHIM_END
