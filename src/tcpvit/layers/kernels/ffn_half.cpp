// The FFN half of a block, x + fc2(GELU(fc1(norm(x)))), forward and backward, on tiles of tokens that stay in the cache.
//
// Nothing but x is kept for the backward pass, which computes the rest again.
//
// x, y (C, R, d)    γ, β (C, d)    w1 (C, d, h)    b1 (C, h)    w2 (C, h, d)    b2 (C, d)
// `dense`: weights as those of nn.Linear, (h, d) and (d, h). Slices that share their parameters come as one, (1, C·R, d).
#include <omp.h>

#include "lanes.h"

namespace {

constexpr int64_t MOST_TOKENS = 64;  // of a tile

struct Shape {
  int64_t slices, rows, width, hidden, dense, tile;  // tile: tokens that are a unit of work
  double eps;
  int64_t tiles() const { return (rows + tile - 1) / tile; }
};

// x·Φ(x) by Φ(-|x|) = exp(-x²/2) · p(|x|). p has the factor 1/√2π; minimax, absolute error of x·Φ(x) 1e-7.
constexpr float TAIL[11] = {1.15533476e-06f, -2.67998385e-05f, 0.000277729938f, -0.00172571559f,
                            0.00734574487f,  -0.0234523341f,   0.0604064092f,   -0.13214685f,
                            0.249827236f,    -0.398928255f,    0.499999821f};
constexpr double SQRT_2PI = 2.5066282746310002;

struct Gelu {  // of a vector
  Vec<float> x, size, density, tail;
  explicit Gelu(Vec<float> x) : x(x), size(clamp_max(x.abs(), Vec<float>(5.5f))) {
    density = bounded_exp2(size * size * Vec<float>(static_cast<float>(-0.5 * LOG2E)));
    tail = Vec<float>(TAIL[0]);
    for (int i = 1; i < 11; ++i) tail = fmadd(tail, size, Vec<float>(TAIL[i]));
    tail = tail * density;
  }
  Vec<float> value() const { return (x + x.abs()) * Vec<float>(0.5f) - size * tail; }
  Vec<float> slope() const {
    const Vec<float> half(0.5f), rise = fmadd(size * density, Vec<float>(static_cast<float>(1 / SQRT_2PI)), half - tail);
    return Vec<float>::blendv(half + rise, half - rise, x < Vec<float>(0.0f));
  }
};

struct GeluDouble {
  Vec<double> x, cdf;
  explicit GeluDouble(Vec<double> x) : x(x) {
    cdf = ((x * Vec<double>(std::sqrt(0.5))).erf() + Vec<double>(1)) * Vec<double>(0.5);
  }
  Vec<double> value() const { return x * cdf; }
  Vec<double> slope() const {
    return cdf + x * (x * x * Vec<double>(-0.5)).exp() * Vec<double>(1 / SQRT_2PI);
  }
};

template <typename A>
using GeluOf = std::conditional_t<std::is_same_v<A, float>, Gelu, GeluDouble>;

template <typename T>
struct Parameters {
  const T *gamma, *beta, *w1, *b1, *w2, *b2;
  Parameters of(int64_t k, const Shape& s) const {
    const int64_t d = s.width, h = s.hidden;
    return {gamma + k * d, beta + k * d, w1 + k * d * h, b1 ? b1 + k * h : b1, w2 + k * d * h, b2 ? b2 + k * d : b2};
  }
};

// The parameters of a slice in the precision that is computed in, and the tiles of a thread.
template <typename A>
struct Tile {
  Rows<A> x, normed, y, hidden, tokens, rstd;
  Rows<A> copies[6];
  Parameters<A> of;
  View<A> w1, w2;  // (h, d) and (d, h)

  explicit Tile(const Shape& s)
      : x(s.width, MOST_TOKENS), normed(s.width, MOST_TOKENS), y(s.width, MOST_TOKENS), hidden(s.hidden, MOST_TOKENS),
        tokens(MOST_TOKENS, padded<A>(s.width)), rstd(1, MOST_TOKENS) {}

  template <typename T>
  void take(const Parameters<T>& p, const Shape& s) {
    const int64_t d = s.width, h = s.hidden;
    of = {widened(p.gamma, d, copies[0]),  widened(p.beta, d, copies[1]), widened(p.w1, d * h, copies[2]),
          widened(p.b1, h, copies[3]), widened(p.w2, d * h, copies[4]), widened(p.b2, d, copies[5])};
    w1 = s.dense ? View<A>{of.w1, d, 1} : View<A>{of.w1, 1, h};
    w2 = s.dense ? View<A>{of.w2, h, 1} : View<A>{of.w2, 1, d};
  }

  // x in lanes -> normed, y = norm(x), hidden = fc1(y)
  void up_to_hidden(const Shape& s, int64_t lanes) {
    norm(x, normed, y, rstd[0], of.gamma, of.beta, s.eps, s.width, lanes);
    product(w1, of.b1, y[0], y.step, hidden[0], hidden.step, s.hidden, s.width, lanes);
  }
};

template <typename T, typename A>
void forward(const T* x, Parameters<T> parameters, T* out, const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t d = s.width, units = s.slices * s.tiles();
#pragma omp parallel num_threads(threads)
  {
    Tile<A> tile(s);
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t current = -1;
    for (int64_t unit = dealt(units, me, all); unit < dealt(units, me + 1, all); ++unit) {
      const int64_t k = unit / s.tiles(), first = unit % s.tiles() * s.tile;
      const int64_t count = std::min(s.tile, s.rows - first), lanes = padded<A>(count), at = (k * s.rows + first) * d;
      if (k != current) tile.take(parameters.of(current = k, s), s);
      to_lanes(x + at, tile.x, count, d);
      tile.up_to_hidden(s, lanes);
      for (int64_t m = 0; m < s.hidden; ++m)
        for (int64_t n = 0; n < lanes; n += W) {
          A* at_hidden = tile.hidden[m] + n;
          GeluOf<A>(Vec<A>::loadu(at_hidden)).value().store(at_hidden);
        }
      product(tile.w2, tile.of.b2, tile.hidden[0], tile.hidden.step, tile.y[0], tile.y.step, d, s.hidden, lanes);
      add_from_lanes(tile.y, 0, tile.tokens, x + at, out + at, count, d);
    }
  }
}

// What the parameters of a slice gain, in one thread: weights as (h, d), with rows of whole lines.
template <typename A>
struct Gains {
  A *gamma, *beta, *b1, *b2, *w1, *w2;
  Gains(A* data, const Shape& s) {
    const int64_t d = s.width, h = s.hidden, matrix = h * lined(d);
    gamma = data, beta = gamma + d, b2 = beta + d, b1 = b2 + d, w1 = data + lined(3 * d + h), w2 = w1 + matrix;
  }
  static int64_t size(const Shape& s) { return lined(3 * s.width + s.hidden) + 2 * s.hidden * lined(s.width); }
};

// `gains` is (slices, Gains::size), zero at first.
template <typename T, typename A>
void backward(const T* grad, const T* x, Parameters<T> parameters, T* d_x, A* gains, const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t d = s.width, units = s.slices * s.tiles(), size = Gains<A>::size(s);
  Begun<A> begun(threads, size);
#pragma omp parallel num_threads(threads)
  {
    Tile<A> tile(s);
    Rows<A> dy(d, MOST_TOKENS), slope(s.hidden, MOST_TOKENS), dy_tokens(MOST_TOKENS, padded<A>(d));
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t current = -1;
    for (int64_t unit = dealt(units, me, all); unit < dealt(units, me + 1, all); ++unit) {
      const int64_t k = unit / s.tiles(), first = unit % s.tiles() * s.tile;
      const int64_t count = std::min(s.tile, s.rows - first), lanes = padded<A>(count), at = (k * s.rows + first) * d;
      if (k != current) tile.take(parameters.of(current = k, s), s);
      const bool begins = k * s.tiles() >= dealt(units, me, all);
      Gains<A> gain(begins ? gains + k * size : begun.by_another(me, k), s);
      if (count < lanes) dy.fill(A(0));  // tokens beyond the last get no gradient
      to_lanes(x + at, tile.x, count, d);
      to_lanes(grad + at, dy, count, d);
      tile.up_to_hidden(s, lanes);
      for (int64_t m = 0; m < s.hidden; ++m)
        for (int64_t n = 0; n < lanes; n += W) {
          const GeluOf<A> gelu(Vec<A>::loadu(tile.hidden[m] + n));
          gelu.value().store(tile.hidden[m] + n);
          gelu.slope().store(slope[m] + n);
        }
      // fc2: its gains need dy token by token, as it came
      for (int64_t t = 0; t < count; ++t)
        for (int64_t e = 0; e < d; ++e) dy_tokens[t][e] = static_cast<A>(grad[at + t * d + e]);
      const int64_t wide = lined(d);
      product<true>(View<A>{tile.hidden[0], tile.hidden.step, 1}, static_cast<const A*>(nullptr), dy_tokens[0],
                    dy_tokens.step, gain.w2, wide, s.hidden, count, padded<A>(d));
      add_sums(dy, gain.b2, d, lanes);
      product(tile.w2.transposed(), static_cast<const A*>(nullptr), dy[0], dy.step, tile.hidden[0], tile.hidden.step,
              s.hidden, d, lanes);
      for (int64_t m = 0; m < s.hidden; ++m)
        for (int64_t n = 0; n < lanes; n += W)
          (Vec<A>::loadu(tile.hidden[m] + n) * Vec<A>::loadu(slope[m] + n)).store(tile.hidden[m] + n);
      // fc1: its gains need y token by token
      transpose(tile.y[0], tile.y.step, tile.tokens[0], tile.tokens.step, d, count);
      product<true>(View<A>{tile.hidden[0], tile.hidden.step, 1}, static_cast<const A*>(nullptr), tile.tokens[0],
                    tile.tokens.step, gain.w1, wide, s.hidden, count, padded<A>(d));
      add_sums(tile.hidden, gain.b1, s.hidden, lanes);
      product(tile.w1.transposed(), static_cast<const A*>(nullptr), tile.hidden[0], tile.hidden.step, tile.x[0],
              tile.x.step, d, s.hidden, lanes);
      norm_backward(tile.x, tile.normed, tile.rstd[0], tile.of.gamma, gain.gamma, gain.beta, d, lanes);
      add_from_lanes(tile.x, 0, tile.tokens, grad + at, d_x + at, count, d);
    }
  }
  begun.add_to(gains);
}

}  // namespace

#define OPERATOR(name, T, A)                                                                                          \
  extern "C" void tcpvit_forward_##name(const T* x, const T* gamma, const T* beta, const T* w1, const T* b1,          \
                                        const T* w2, const T* b2, T* y, const Shape* shape, int threads) {            \
    forward<T, A>(x, {gamma, beta, w1, b1, w2, b2}, y, *shape, threads);                                              \
  }                                                                                                                   \
  extern "C" void tcpvit_backward_##name(const T* grad, const T* x, const T* gamma, const T* beta, const T* w1,       \
                                         const T* b1, const T* w2, T* d_x, A* gains, const Shape* shape, int threads) { \
    backward<T, A>(grad, x, {gamma, beta, w1, b1, w2, nullptr}, d_x, gains, *shape, threads);                         \
  }

OPERATOR(float32, float, float)
OPERATOR(float64, double, double)
OPERATOR(bfloat16, c10::BFloat16, float)
