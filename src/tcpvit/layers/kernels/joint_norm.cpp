// LayerNorm of tokens over all their slices together (the coupling `norm`), forward and backward.
//
// A token's numbers lie in C places far apart. A block of tokens is taken at a time: of each slice it is one run of
// numbers, so that all sums are kept number by number and added up within a token once, at the end of a pass.
//
// x, y (C, R, d)    weight, bias (C or 1, d)    mean, rstd (R)
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t ROWS = 32;  // tokens that are a unit of work

struct Shape {
  int64_t slices, rows, width, own;  // own: slices with a scale of their own, C or 1
  double eps;
  int64_t blocks() const { return (rows + ROWS - 1) / ROWS; }
};

// sums (rows·d) -> the same mean in all numbers of a token.
template <typename A>
void average(std::vector<A>& sums, int64_t rows, const Shape& s) {
  for (int64_t r = 0; r < rows; ++r) {
    A total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t e = 0; e < s.width; ++e) total += sums[r * s.width + e];
    std::fill_n(sums.begin() + r * s.width, s.width, total / static_cast<A>(s.slices * s.width));
  }
}

// The d numbers of a slice's weight or bias, once for each token of a block.
template <typename T, typename A>
void repeat(const T* numbers, std::vector<A>& tiled, int64_t rows, int64_t d) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t e = 0; e < d; ++e) tiled[r * d + e] = static_cast<A>(numbers[e]);
}

// The other way round: the sum over the tokens of a block.
template <typename A>
void add_rows(std::vector<A>& tiled, A* numbers, int64_t rows, int64_t d) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t e = 0; e < d; ++e) numbers[e] += tiled[r * d + e];
  std::fill(tiled.begin(), tiled.end(), A(0));
}

template <typename T, typename A>
void forward(const T* x, const T* weight, const T* bias, T* y, A* mean, A* rstd, const Shape& s, int threads) {
  const int64_t d = s.width;
#pragma omp parallel num_threads(threads)
  {
    std::vector<A> mu(ROWS * d), scale(ROWS * d), gamma(ROWS * d), beta(ROWS * d);
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.blocks(); ++unit) {
      const int64_t first = unit * ROWS, rows = std::min(ROWS, s.rows - first), n = rows * d;
      std::fill(mu.begin(), mu.end(), A(0));
      std::fill(scale.begin(), scale.end(), A(0));
      for (int64_t k = 0; k < s.slices; ++k) {
        const T* run = x + (k * s.rows + first) * d;
        for (int64_t i = 0; i < n; ++i) mu[i] += static_cast<A>(run[i]);
      }
      average(mu, rows, s);
      for (int64_t k = 0; k < s.slices; ++k) {
        const T* run = x + (k * s.rows + first) * d;
        for (int64_t i = 0; i < n; ++i) scale[i] += (static_cast<A>(run[i]) - mu[i]) * (static_cast<A>(run[i]) - mu[i]);
      }
      average(scale, rows, s);
      for (int64_t i = 0; i < n; ++i) scale[i] = A(1) / std::sqrt(scale[i] + static_cast<A>(s.eps));
      for (int64_t k = 0; k < s.slices; ++k) {
        if (k < s.own) {
          repeat(weight + k * d, gamma, rows, d);
          repeat(bias + k * d, beta, rows, d);
        }
        const int64_t at = (k * s.rows + first) * d;
        for (int64_t i = 0; i < n; ++i)
          y[at + i] = static_cast<T>((static_cast<A>(x[at + i]) - mu[i]) * scale[i] * gamma[i] + beta[i]);
      }
      for (int64_t r = 0; r < rows; ++r) {
        mean[first + r] = mu[r * d];
        rstd[first + r] = scale[r * d];
      }
    }
  }
}

// d_weight and d_bias are (blocks, C or 1, d): what each unit of work adds, summed by the caller.
template <typename T, typename A>
void backward(const T* grad, const T* x, const T* weight, const A* mean, const A* rstd, T* d_x, A* d_weight, A* d_bias,
              const Shape& s, int threads) {
  const int64_t d = s.width;
#pragma omp parallel num_threads(threads)
  {
    std::vector<A> mu(ROWS * d), scale(ROWS * d), gamma(ROWS * d), plain(ROWS * d), along(ROWS * d);
    std::vector<A> by_weight(ROWS * d), by_bias(ROWS * d);
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.blocks(); ++unit) {
      const int64_t first = unit * ROWS, rows = std::min(ROWS, s.rows - first), n = rows * d;
      A *dw = d_weight + unit * s.own * d, *db = d_bias + unit * s.own * d;
      std::fill(dw, dw + s.own * d, A(0));
      std::fill(db, db + s.own * d, A(0));
      std::fill(plain.begin(), plain.end(), A(0));
      std::fill(along.begin(), along.end(), A(0));
      for (int64_t r = 0; r < rows; ++r) {
        std::fill_n(mu.begin() + r * d, d, mean[first + r]);
        std::fill_n(scale.begin() + r * d, d, rstd[first + r]);
      }
      for (int64_t k = 0; k < s.slices; ++k) {
        if (k < s.own) repeat(weight + k * d, gamma, rows, d);
        const int64_t at = (k * s.rows + first) * d;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const A g = static_cast<A>(grad[at + i]), normed = (static_cast<A>(x[at + i]) - mu[i]) * scale[i];
          plain[i] += g * gamma[i];  // Σ gγ
          along[i] += g * gamma[i] * normed;  // Σ gγ·x̂
          by_weight[i] += g * normed;
          by_bias[i] += g;
        }
        if (s.own > 1 || k + 1 == s.slices) {
          const int64_t own = s.own > 1 ? k : 0;
          add_rows(by_weight, dw + own * d, rows, d);
          add_rows(by_bias, db + own * d, rows, d);
        }
      }
      average(plain, rows, s);
      average(along, rows, s);
      for (int64_t k = 0; k < s.slices; ++k) {
        if (s.own > 1) repeat(weight + k * d, gamma, rows, d);
        const int64_t at = (k * s.rows + first) * d;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          const A normed = (static_cast<A>(x[at + i]) - mu[i]) * scale[i];
          d_x[at + i] = static_cast<T>((static_cast<A>(grad[at + i]) * gamma[i] - plain[i] - normed * along[i]) * scale[i]);
        }
      }
    }
  }
}

}  // namespace

#include "norm_operators.h"
