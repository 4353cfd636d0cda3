#pragma once

// Every swizzle of vec as a property: `v.xzy` calls get_xzy() and `v.xy = w` calls put_xy(w), so
// that a swizzle is an ordinary vec for overload resolution and template argument deduction, and
// takes no storage. `place` refuses to assign a swizzle that repeats a component, as Metal does.
// Components are properties too: like in Metal, no pointer or reference to one can be taken.

// X(xyzw name, rgba name, index, arguments...) for the components of vec<T, 2>, <T, 3> and <T, 4>.
// One copy a nesting depth, because a macro cannot expand inside itself.
#define EMU_2A(X, ...) X(x, r, 0, __VA_ARGS__) X(y, g, 1, __VA_ARGS__)
#define EMU_2B(X, ...) X(x, r, 0, __VA_ARGS__) X(y, g, 1, __VA_ARGS__)
#define EMU_2C(X, ...) X(x, r, 0, __VA_ARGS__) X(y, g, 1, __VA_ARGS__)
#define EMU_2D(X, ...) X(x, r, 0, __VA_ARGS__) X(y, g, 1, __VA_ARGS__)
#define EMU_3A(X, ...) EMU_2A(X, __VA_ARGS__) X(z, b, 2, __VA_ARGS__)
#define EMU_3B(X, ...) EMU_2B(X, __VA_ARGS__) X(z, b, 2, __VA_ARGS__)
#define EMU_3C(X, ...) EMU_2C(X, __VA_ARGS__) X(z, b, 2, __VA_ARGS__)
#define EMU_3D(X, ...) EMU_2D(X, __VA_ARGS__) X(z, b, 2, __VA_ARGS__)
#define EMU_4A(X, ...) EMU_3A(X, __VA_ARGS__) X(w, a, 3, __VA_ARGS__)
#define EMU_4B(X, ...) EMU_3B(X, __VA_ARGS__) X(w, a, 3, __VA_ARGS__)
#define EMU_4C(X, ...) EMU_3C(X, __VA_ARGS__) X(w, a, 3, __VA_ARGS__)
#define EMU_4D(X, ...) EMU_3D(X, __VA_ARGS__) X(w, a, 3, __VA_ARGS__)

#define EMU_COMPONENT(x_, r_, i_, ...)                          \
  constexpr T get_##x_() const { return this->d[i_]; }          \
  constexpr T put_##x_(T value) { return this->d[i_] = value; } \
  __declspec(property(get = get_##x_, put = put_##x_)) T x_;    \
  __declspec(property(get = get_##x_, put = put_##x_)) T r_;

#define EMU_SWIZZLE(name_, alias_, n_, ...)                                               \
  constexpr vec<T, n_> get_##name_() const { return this->template pick<__VA_ARGS__>(); } \
  constexpr vec<T, n_> put_##name_(const vec<T, n_>& value) {                             \
    return this->template place<__VA_ARGS__>(value);                                      \
  }                                                                                       \
  __declspec(property(get = get_##name_, put = put_##name_)) vec<T, n_> name_;            \
  __declspec(property(get = get_##name_, put = put_##name_)) vec<T, n_> alias_;

#define EMU_PAIR(x2, r2, i2, x1, r1, i1, ...) EMU_SWIZZLE(x1##x2, r1##r2, 2, i1, i2)
#define EMU_TRIPLE(x3, r3, i3, x2, r2, i2, x1, r1, i1, ...) \
  EMU_SWIZZLE(x1##x2##x3, r1##r2##r3, 3, i1, i2, i3)
#define EMU_QUADRUPLE(x4, r4, i4, x3, r3, i3, x2, r2, i2, x1, r1, i1, ...) \
  EMU_SWIZZLE(x1##x2##x3##x4, r1##r2##r3##r4, 4, i1, i2, i3, i4)

#define EMU_PAIR_2(...) EMU_2B(EMU_PAIR, __VA_ARGS__) EMU_2B(EMU_TRIPLE_2, __VA_ARGS__)
#define EMU_TRIPLE_2(...) EMU_2C(EMU_TRIPLE, __VA_ARGS__) EMU_2C(EMU_QUADRUPLE_2, __VA_ARGS__)
#define EMU_QUADRUPLE_2(...) EMU_2D(EMU_QUADRUPLE, __VA_ARGS__)
#define EMU_PAIR_3(...) EMU_3B(EMU_PAIR, __VA_ARGS__) EMU_3B(EMU_TRIPLE_3, __VA_ARGS__)
#define EMU_TRIPLE_3(...) EMU_3C(EMU_TRIPLE, __VA_ARGS__) EMU_3C(EMU_QUADRUPLE_3, __VA_ARGS__)
#define EMU_QUADRUPLE_3(...) EMU_3D(EMU_QUADRUPLE, __VA_ARGS__)
#define EMU_PAIR_4(...) EMU_4B(EMU_PAIR, __VA_ARGS__) EMU_4B(EMU_TRIPLE_4, __VA_ARGS__)
#define EMU_TRIPLE_4(...) EMU_4C(EMU_TRIPLE, __VA_ARGS__) EMU_4C(EMU_QUADRUPLE_4, __VA_ARGS__)
#define EMU_QUADRUPLE_4(...) EMU_4D(EMU_QUADRUPLE, __VA_ARGS__)

#define EMU_SWIZZLES(n) EMU_##n##A(EMU_COMPONENT, ) EMU_##n##A(EMU_PAIR_##n, )

namespace emu {

template <class T, int N>
constexpr int vector_alignment() {
  int size = 1;
  while (size < N) {
    size *= 2;
  }
  return size * static_cast<int>(sizeof(T));
}

// The elements of vec<T, N>. Three elements take the room of four; eight and more (MLX uses
// vec<T, 8> and vec<T, 2 * TM>) have no named components.
template <class T, int N>
struct alignas(vector_alignment<T, N>()) VectorStorage {
  T d[N];
};
// The elements of packed_vec<T, N>.
template <class T, int N>
struct PackedStorage {
  T d[N];
};

}  // namespace emu

namespace metal {

template <class T, int N, class Storage>
struct vec_components : Storage {
 protected:
  template <int... I>
  constexpr vec<T, sizeof...(I)> pick() const {
    return vec<T, sizeof...(I)>(this->d[I]...);
  }
  template <int... I>
  constexpr vec<T, sizeof...(I)> place(const vec<T, sizeof...(I)>& value) {
    constexpr int used = ((1 << I) | ...);
    static_assert(__builtin_popcount(used) == sizeof...(I),
                  "a swizzle that repeats a component cannot be assigned");
    int k = 0;
    ((this->d[I] = value.d[k++]), ...);
    return value;
  }
};

template <class T, int N, class Storage>
struct vec_swizzles : vec_components<T, N, Storage> {};
template <class T, class Storage>
struct vec_swizzles<T, 2, Storage> : vec_components<T, 2, Storage> {
  EMU_SWIZZLES(2)
};
template <class T, class Storage>
struct vec_swizzles<T, 3, Storage> : vec_components<T, 3, Storage> {
  EMU_SWIZZLES(3)
};
template <class T, class Storage>
struct vec_swizzles<T, 4, Storage> : vec_components<T, 4, Storage> {
  EMU_SWIZZLES(4)
};

}  // namespace metal

#undef EMU_COMPONENT
#undef EMU_SWIZZLE
#undef EMU_SWIZZLES
