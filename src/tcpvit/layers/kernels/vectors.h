// What all kernels on vectors share: rows in a thread's own memory, and the functions that torch's vectors have slower.
#pragma once
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

namespace {

using at::vec::cast;
using at::vec::clamp_max;
using at::vec::clamp_min;
using at::vec::fmadd;
template <typename A>
using Vec = at::vec::Vectorized<A>;

template <typename A>
int64_t padded(int64_t count) {  // to whole vectors
  return (count + Vec<A>::size() - 1) / Vec<A>::size() * Vec<A>::size();
}

constexpr int64_t LINE = 16;  // numbers that rows of gradients are padded to: whole vectors of any processor
inline int64_t lined(int64_t count) { return (count + LINE - 1) / LINE * LINE; }

// The working memory of a thread: rows of `step` numbers, zero at first, on the lines of the cache.
template <typename A>
struct Rows {
  struct Free {
    void operator()(A* data) const { ::operator delete[](data, std::align_val_t{64}); }
  };
  int64_t count = 0, step = 0;
  std::unique_ptr<A[], Free> data;

  Rows() = default;
  Rows(int64_t count, int64_t step)
      : count(count), step(step),
        data(static_cast<A*>(::operator new[](std::max<int64_t>(count * step, 1) * sizeof(A), std::align_val_t{64}))) {
    fill(A(0));
  }
  A* operator[](int64_t i) { return data.get() + i * step; }
  const A* operator[](int64_t i) const { return data.get() + i * step; }
  A* begin() { return data.get(); }
  A* end() { return data.get() + count * step; }
  void fill(A number) { std::fill(begin(), end(), number); }
};

template <typename A>
A sum(Vec<A> x) {
  return at::vec::vec_reduce_all<A>([](const Vec<A>& a, const Vec<A>& b) { return a + b; }, x);
}

// Columns 4·c to 4·c+3 of a tile of 16×16 numbers, as vectors over its rows: pieces of four numbers are loaded to where
// they belong, so that nothing crosses them but one transposition of 4×4.
#ifdef CPU_CAPABILITY_AVX512
inline void four_columns(const float* tile, int64_t step, Vec<float>* columns) {
  __m512 part[4];
  for (int k = 0; k < 4; ++k) {
    part[k] = _mm512_castps128_ps512(_mm_loadu_ps(tile + k * step));
    part[k] = _mm512_insertf32x4(part[k], _mm_loadu_ps(tile + (k + 4) * step), 1);
    part[k] = _mm512_insertf32x4(part[k], _mm_loadu_ps(tile + (k + 8) * step), 2);
    part[k] = _mm512_insertf32x4(part[k], _mm_loadu_ps(tile + (k + 12) * step), 3);
  }
  const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(part[0], part[1]));
  const __m512d high = _mm512_castps_pd(_mm512_unpackhi_ps(part[0], part[1]));
  const __m512d next_low = _mm512_castps_pd(_mm512_unpacklo_ps(part[2], part[3]));
  const __m512d next_high = _mm512_castps_pd(_mm512_unpackhi_ps(part[2], part[3]));
  columns[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, next_low));
  columns[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, next_low));
  columns[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, next_high));
  columns[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, next_high));
}
#endif

// to[j][i] = from[i][j] for `rows` rows and `columns` columns.
template <typename A>
void transpose(const A* from, int64_t from_step, A* to, int64_t to_step, int64_t rows, int64_t columns) {
  int64_t whole = 0;
#ifdef CPU_CAPABILITY_AVX512
  if constexpr (std::is_same_v<A, float>) {
    const int64_t even = columns / 4 * 4;
    for (; whole + 16 <= rows; whole += 16) {
      const A* tile = from + whole * from_step;
      for (int64_t j = 0; j < even; j += 4) {
        Vec<float> found[4];
        four_columns(tile + j, from_step, found);
        for (int64_t m = 0; m < 4; ++m) found[m].store(to + (j + m) * to_step + whole);
      }
      for (int64_t j = even; j < columns; ++j)
        for (int64_t i = 0; i < 16; ++i) to[j * to_step + whole + i] = tile[i * from_step + j];
    }
  }
#endif
  for (int64_t i = whole; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[j * to_step + i] = from[i * from_step + j];
}

// 2^x between -1/2 and 1/2, highest power first: minimax, relative error 7e-8
constexpr float POWER[6] = {0.00132764725f, 0.00967554096f, 0.0555071309f, 0.240221202f, 0.693146944f, 1.00000012f};
constexpr double LOG2E = 1.4426950408889634, LN2 = 0.6931471805599453;

// 2^x for x between -126 and 127.
inline Vec<double> bounded_exp2(Vec<double> x) { return (x * Vec<double>(LN2)).exp(); }
inline Vec<float> bounded_exp2(Vec<float> x) {
  const Vec<float> round(12582912.0f);  // 1.5 · 2^23: what is added to it is rounded to a whole number in its last bits
  const Vec<float> whole = x + round, part = x - (whole - round);  // part is between -1/2 and 1/2
  Vec<float> power(POWER[0]);
  for (int i = 1; i < 6; ++i) power = fmadd(power, part, Vec<float>(POWER[i]));
  const auto exponent = cast<int32_t>(whole) << Vec<int32_t>(23);
  return cast<float>(cast<int32_t>(power) + exponent);
}

// 2^x for x up to 0 or a rounding error above.
inline Vec<double> exp2(Vec<double> x) { return bounded_exp2(x); }
inline Vec<float> exp2(Vec<float> x) { return bounded_exp2(clamp_min(x, Vec<float>(-126.0f))); }

}  // namespace
