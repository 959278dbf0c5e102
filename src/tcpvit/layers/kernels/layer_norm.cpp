// LayerNorm of narrow slices with a scale and shift for each slice, forward and backward.
//
// torch's kernel is made for rows of hundreds of numbers and takes one scale for all rows; a slice has 16 to 64 numbers,
// and every slice its own scale. A row fits into a few vectors here.
//
// x, y (C, R, d)    weight, bias (C, d)    mean, rstd (C, R)
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t ROWS = 256;  // rows of one slice that are a unit of work

struct Shape {
  int64_t slices, rows, width;
  double eps;
  int64_t blocks() const { return (rows + ROWS - 1) / ROWS; }
};

template <typename A>
using Vec = at::vec::Vectorized<A>;

template <typename A>
A sum(Vec<A> x) {
  return at::vec::vec_reduce_all<A>([](const Vec<A>& a, const Vec<A>& b) { return a + b; }, x);
}

// Numbers of a row from e on, zero beyond its end.
template <typename A>
Vec<A> load(const A* row, int64_t e, int64_t width) {
  return width - e >= Vec<A>::size() ? Vec<A>::loadu(row + e) : Vec<A>::loadu(row + e, width - e);
}

template <typename A>
void store(Vec<A> x, A* row, int64_t e, int64_t width) {
  x.store(row + e, std::min<int64_t>(Vec<A>::size(), width - e));
}

// Low precision is computed in float: rows pass through these buffers.
template <typename T, typename A>
const A* widen(const T* row, A* buffer, int64_t width) {
  if constexpr (std::is_same_v<T, A>) return row;
  for (int64_t e = 0; e < width; ++e) buffer[e] = static_cast<A>(row[e]);
  return buffer;
}

template <typename T, typename A>
A* target(T* row, A* buffer) {
  if constexpr (std::is_same_v<T, A>) return row;
  return buffer;
}

template <typename T, typename A>
void narrow(const A* buffer, T* row, int64_t width) {
  if constexpr (!std::is_same_v<T, A>)
    for (int64_t e = 0; e < width; ++e) row[e] = static_cast<T>(buffer[e]);
}

template <typename T, typename A>
void forward(const T* x, const T* weight, const T* bias, T* y, A* mean, A* rstd, const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t d = s.width;
#pragma omp parallel num_threads(threads)
  {
    std::vector<A> in(d), out(d), gamma(d), beta(d);
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.slices * s.blocks(); ++unit) {
      const int64_t k = unit / s.blocks(), first = unit % s.blocks() * ROWS, last = std::min(first + ROWS, s.rows);
      for (int64_t e = 0; e < d; ++e) {
        gamma[e] = static_cast<A>(weight[k * d + e]);
        beta[e] = static_cast<A>(bias[k * d + e]);
      }
      for (int64_t r = k * s.rows + first; r < k * s.rows + last; ++r) {
        const A* row = widen(x + r * d, in.data(), d);
        A* result = target(y + r * d, out.data());
        Vec<A> total(0);
        for (int64_t e = 0; e < d; e += W) total = total + load(row, e, d);
        const A mu = sum(total) / d;
        Vec<A> squares(0);
        int64_t e = 0;
        for (; e + W <= d; e += W) {
          const Vec<A> centred = Vec<A>::loadu(row + e) - Vec<A>(mu);
          squares = at::vec::fmadd(centred, centred, squares);
        }
        A square = sum(squares);
        for (; e < d; ++e) square += (row[e] - mu) * (row[e] - mu);
        const A scale = A(1) / std::sqrt(square / d + static_cast<A>(s.eps));
        for (e = 0; e < d; e += W) {
          const Vec<A> normed = (load(row, e, d) - Vec<A>(mu)) * Vec<A>(scale);
          store(at::vec::fmadd(normed, load(gamma.data(), e, d), load(beta.data(), e, d)), result, e, d);
        }
        narrow(result, y + r * d, d);
        mean[r] = mu;
        rstd[r] = scale;
      }
    }
  }
}

// d_weight and d_bias are (C, blocks, d): what each unit of work adds, summed by the caller.
template <typename T, typename A>
void backward(const T* grad, const T* x, const T* weight, const A* mean, const A* rstd, T* d_x, A* d_weight, A* d_bias,
              const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t d = s.width;
#pragma omp parallel num_threads(threads)
  {
    std::vector<A> in(d), g_in(d), out(d), gamma(d);
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.slices * s.blocks(); ++unit) {
      const int64_t k = unit / s.blocks(), first = unit % s.blocks() * ROWS, last = std::min(first + ROWS, s.rows);
      for (int64_t e = 0; e < d; ++e) gamma[e] = static_cast<A>(weight[k * d + e]);
      A *dw = d_weight + unit * d, *db = d_bias + unit * d;
      std::fill(dw, dw + d, A(0));
      std::fill(db, db + d, A(0));
      for (int64_t r = k * s.rows + first; r < k * s.rows + last; ++r) {
        const A *row = widen(x + r * d, in.data(), d), *g = widen(grad + r * d, g_in.data(), d);
        A* result = target(d_x + r * d, out.data());
        const Vec<A> mu(mean[r]), scale(rstd[r]);
        Vec<A> plain(0), along(0);  // Σ gγ and Σ gγ·x̂
        for (int64_t e = 0; e < d; e += W) {
          const Vec<A> dy = load(g, e, d), pull = dy * load(gamma.data(), e, d);  // zero beyond the end
          const Vec<A> normed = (load(row, e, d) - mu) * scale;
          plain = plain + pull;
          along = at::vec::fmadd(pull, normed, along);
          store(at::vec::fmadd(dy, normed, load(dw, e, d)), dw, e, d);
          store(load(db, e, d) + dy, db, e, d);
        }
        const Vec<A> shift(sum(plain) / d), slope(sum(along) / d);
        for (int64_t e = 0; e < d; e += W) {
          const Vec<A> normed = (load(row, e, d) - mu) * scale;
          store((load(g, e, d) * load(gamma.data(), e, d) - shift - normed * slope) * scale, result, e, d);
        }
        narrow(result, d_x + r * d, d);
      }
    }
  }
}

}  // namespace

#include "norm_operators.h"
