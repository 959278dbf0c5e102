// Tubes of flat features through a C×C matrix: apart into slices on the way in, together again on the way out.
//
// For torch this is a matrix product with one side of length C, or a transposed copy, and short tubes are far slower
// that way than the memory; here each tube is read, transformed in registers and written once.
//
// to_hat: x (R, C) -> y (C, R)    from_hat: x (C, R) -> y (R, C)    matrix (C, C)
#include <algorithm>
#include <cstdint>

namespace {

constexpr int64_t BLOCK = 1024;  // tubes that are a unit of work

struct Shape {
  int64_t tubes, length;
};

// `count` tubes, between tubes one after the other and slices that lie `slice` numbers apart. The compiler knows C, and
// makes vectors of neighbouring tubes.
template <int C, bool TO_HAT, typename T>
void pass(const T* __restrict x, const T* __restrict matrix, T* __restrict y, int64_t slice, int64_t count) {
  T m[C * C];
  std::copy_n(matrix, C * C, m);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    T tube[C];
    for (int q = 0; q < C; ++q) tube[q] = TO_HAT ? x[i * C + q] : x[q * slice + i];
    for (int k = 0; k < C; ++k) {
      T sum = m[k * C] * tube[0];
      for (int q = 1; q < C; ++q) sum += m[k * C + q] * tube[q];
      y[TO_HAT ? k * slice + i : i * C + k] = sum;
    }
  }
}

template <int C, bool TO_HAT, typename T>
void all(const T* x, const T* matrix, T* y, int64_t tubes, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t first = 0; first < tubes; first += BLOCK) {
    const int64_t flat = first * C, count = std::min(BLOCK, tubes - first);
    pass<C, TO_HAT, T>(x + (TO_HAT ? flat : first), matrix, y + (TO_HAT ? first : flat), tubes, count);
  }
}

template <bool TO_HAT, typename T>
void dispatch(const T* x, const T* matrix, T* y, const Shape& s, int threads) {
  switch (s.length) {
    case 2: return all<2, TO_HAT, T>(x, matrix, y, s.tubes, threads);
    case 3: return all<3, TO_HAT, T>(x, matrix, y, s.tubes, threads);
    case 4: return all<4, TO_HAT, T>(x, matrix, y, s.tubes, threads);
    case 5: return all<5, TO_HAT, T>(x, matrix, y, s.tubes, threads);
    case 6: return all<6, TO_HAT, T>(x, matrix, y, s.tubes, threads);
    case 7: return all<7, TO_HAT, T>(x, matrix, y, s.tubes, threads);
    case 8: return all<8, TO_HAT, T>(x, matrix, y, s.tubes, threads);
  }
}

}  // namespace

#define OPERATOR(name, T)                                                                                   \
  extern "C" void tcpvit_to_hat_##name(const T* x, const T* matrix, T* y, const Shape* shape, int threads) { \
    dispatch<true, T>(x, matrix, y, *shape, threads);                                                    \
  }                                                                                                         \
  extern "C" void tcpvit_from_hat_##name(const T* x, const T* matrix, T* y, const Shape* shape, int threads) { \
    dispatch<false, T>(x, matrix, y, *shape, threads);                                                   \
  }

OPERATOR(float32, float)
OPERATOR(float64, double)
