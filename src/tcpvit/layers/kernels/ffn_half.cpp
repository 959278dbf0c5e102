// The FFN half of a block, x + fc2(GELU(fc1(norm(x)))), forward and backward, on tiles of tokens that stay in the cache.
//
// Nothing but x is kept for the backward pass, which computes the rest again. Slices go one by one, or, if they are
// coupled, all together: by a norm over all of them (`joint`), or by a shuffle before fc2, which in lanes is no more than
// the place where a row is written, or by a matrix that mixes them before fc1 and one before fc2. Depthwise filters before
// GELU take the tokens of an image together.
//
// x, y (C, R, d)    γ, β (C, d)    w1 (C, d, h)    b1 (C, h)    w2 (C, h, d)    b2 (C, d)
// filters (C, h, side, side), their biases (C, h), mix1 and mix2 (C, C), or null
// `dense`: weights as those of nn.Linear, (h, d) and (d, h). Slices that share their parameters come as one, (1, C·R, d).
#include <omp.h>

#include "filter.h"
#include "lanes.h"

namespace {

struct Shape {
  int64_t slices, rows, width, hidden, dense;
  int64_t tile;  // tokens that are a unit of work
  int64_t parts;  // slices that are
  int64_t joint, shuffle, side, height, across, mixes;
  double eps;

  int64_t tiles() const { return (rows + tile - 1) / tile; }
  int64_t groups() const { return slices / parts; }
  int64_t features() const { return parts * width; }
  int64_t norms() const { return joint ? 1 : parts; }
  int64_t taps() const { return side * side; }
  int64_t lanes() const { return lined(tile) + (tile > 64 ? LINE : 0); }  // no powers of 2, which collide in the cache
  int64_t at(int64_t group, int64_t part, int64_t row) const { return ((group * parts + part) * rows + row) * width; }
  // Where feature m of all slices end to end is for fc2.
  int64_t place(int64_t m) const { return shuffle ? m % hidden * parts + m / hidden : m; }
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
struct Parameters {  // of a group of slices, or their gradients
  T *gamma, *beta, *w1, *b1, *w2, *b2, *filters, *filter_bias, *mix1, *mix2;
  Parameters of(int64_t group, const Shape& s) const {
    const int64_t d = group * s.parts * s.width, h = group * s.parts * s.hidden;
    const auto at = [](T* data, int64_t step) { return data ? data + step : data; };
    return {gamma + d,      beta + d,     w1 + d * s.hidden,          at(b1, h), w2 + d * s.hidden,
            at(b2, d), at(filters, h * s.taps()), at(filter_bias, h),
            mix1, mix2};
  }
};

// The parameters of a group in the precision that is computed in, and the tokens that a thread works on.
template <typename A>
struct Tile {
  Rows<A> x, normed, y, mixed, before, hidden, tokens, rstd;  // hidden: before GELU; before: also before the filters
  Rows<A> shuffled, mixed_hidden;                              // of what GELU gives
  Rows<A> copies[10];
  Parameters<const A> of;
  Filter<A> filter;

  explicit Tile(const Shape& s)
      : x(s.features(), s.lanes()), normed(s.features(), s.lanes()), y(s.features(), s.lanes()),
        mixed(s.mixes ? s.features() : 0, s.lanes()), before(s.side ? s.parts * s.hidden : 0, s.lanes()),
        hidden(s.parts * s.hidden, s.lanes()),
        tokens(s.lanes(), padded<A>(s.width)), rstd(s.norms(), s.lanes()),
        shuffled(s.shuffle ? s.parts * s.hidden : 0, s.lanes()),
        mixed_hidden(s.mixes ? s.parts * s.hidden : 0, s.lanes()), filter(s.height, s.across, s.side) {}

  template <typename T>
  void take(const Parameters<const T>& p, const Shape& s) {
    const int64_t d = s.features(), h = s.parts * s.hidden;
    of = {widened(p.gamma, d, copies[0]),        widened(p.beta, d, copies[1]),
          widened(p.w1, d * s.hidden, copies[2]), widened(p.b1, h, copies[3]),
          widened(p.w2, d * s.hidden, copies[4]), widened(p.b2, d, copies[5]),
          widened(p.filters, h * s.taps(), copies[6]), widened(p.filter_bias, h, copies[7]),
          widened(p.mix1, s.parts * s.parts, copies[8]), widened(p.mix2, s.parts * s.parts, copies[9])};
  }
  View<A> mix1(const Shape& s) const { return {of.mix1, s.parts, 1}; }
  View<A> mix2(const Shape& s) const { return {of.mix2, s.parts, 1}; }
  Rows<A>& into_fc1(const Shape& s) { return s.mixes ? mixed : y; }
  Rows<A>& active(const Shape& s) { return s.shuffle ? shuffled : hidden; }  // what GELU gives, in its place
  Rows<A>& into_fc2(const Shape& s) { return s.mixes ? mixed_hidden : active(s); }
  View<A> w1(int64_t p, const Shape& s) const {  // (h, d)
    const A* data = of.w1 + p * s.width * s.hidden;
    return s.dense ? View<A>{data, s.width, 1} : View<A>{data, 1, s.hidden};
  }
  View<A> w2(int64_t p, const Shape& s) const {  // (d, h)
    const A* data = of.w2 + p * s.width * s.hidden;
    return s.dense ? View<A>{data, s.hidden, 1} : View<A>{data, 1, s.width};
  }

  // x in lanes -> normed, y = norm(x), hidden = filters(fc1(y))
  void up_to_hidden(const Shape& s, int64_t lanes) {
    const int64_t width = s.features() / s.norms();
    for (int64_t i = 0, e = 0; i < s.norms(); ++i, e += width)
      norm(from(x, e), from(normed, e), from(y, e), rstd[i], of.gamma + e, of.beta + e, s.eps, width, lanes);
    if (s.mixes) mix(mix1(s), y, mixed, s.parts);
    Rows<A>&in = into_fc1(s), &out = s.side ? before : hidden;
    for (int64_t p = 0; p < s.parts; ++p)
      product(w1(p, s), of.b1 + p * s.hidden, in[p * s.width], in.step, out[p * s.hidden], out.step, s.hidden,
              s.width, lanes);
    for (int64_t m = 0; s.side && m < s.parts * s.hidden; ++m) {
      filter.spread(before[m], filter.in);
      filter.apply(filter.in, of.filters + m * s.taps(), of.filter_bias[m], hidden[m]);
    }
  }
};

template <typename T, typename A>
void forward(const T* x, Parameters<const T> parameters, T* out, const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t d = s.width, units = s.groups() * s.tiles();
#pragma omp parallel num_threads(threads)
  {
    Tile<A> tile(s);
    Rows<A>&active = tile.active(s), &into_fc2 = tile.into_fc2(s);
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t current = -1;
    for (int64_t unit = dealt(units, me, all); unit < dealt(units, me + 1, all); ++unit) {
      const int64_t group = unit / s.tiles(), first = unit % s.tiles() * s.tile;
      const int64_t count = std::min(s.tile, s.rows - first), lanes = padded<A>(count);
      if (group != current) tile.take(parameters.of(current = group, s), s);
      for (int64_t p = 0; p < s.parts; ++p)
        to_lanes(x + s.at(group, p, first), from(tile.x, p * d), count, d);
      tile.up_to_hidden(s, lanes);
      for (int64_t m = 0; m < s.parts * s.hidden; ++m)
        for (int64_t n = 0; n < lanes; n += W)
          GeluOf<A>(Vec<A>::loadu(tile.hidden[m] + n)).value().store(active[s.place(m)] + n);
      if (s.mixes) mix(tile.mix2(s), active, into_fc2, s.parts);
      for (int64_t p = 0; p < s.parts; ++p) {
        const int64_t at = s.at(group, p, first);
        product(tile.w2(p, s), tile.of.b2 + p * d, into_fc2[p * s.hidden], into_fc2.step, tile.y[0], tile.y.step, d,
                s.hidden, lanes);
        add_from_lanes(from(tile.y, 0), tile.tokens, x + at, out + at, count, d);
      }
    }
  }
}

// The sums of what the parameters of a group gain: weights as (parts, h, d), with rows of whole lines; those of a filter's
// tap in the lanes of a line, to be added up.
template <typename A>
struct Gains {
  A *gamma, *beta, *b2, *b1, *filter_bias, *mix1, *mix2, *w1, *w2, *filters;
  Gains(A* data, const Shape& s) {
    const int64_t d = s.features(), h = s.parts * s.hidden, matrix = h * lined(s.width);
    gamma = data, beta = gamma + d, b2 = beta + d, b1 = b2 + d, filter_bias = b1 + h;
    mix1 = filter_bias + h, mix2 = mix1 + s.mixes * s.parts * s.parts;
    w1 = data + lined(vectors(s)), w2 = w1 + matrix, filters = w2 + matrix;
  }
  static int64_t vectors(const Shape& s) {
    return 3 * s.features() + 2 * s.parts * s.hidden + 2 * s.mixes * s.parts * s.parts;
  }
  static int64_t size(const Shape& s) {
    const int64_t h = s.parts * s.hidden;
    return lined(vectors(s)) + 2 * h * lined(s.width) + h * s.taps() * LINE;
  }

  template <typename T>
  void hand_over(Parameters<T> to, const Shape& s) const {
    const int64_t d = s.width, h = s.hidden, mixes = s.parts * s.parts;
    narrowed(gamma, to.gamma, s.features());
    narrowed(beta, to.beta, s.features());
    narrowed(b2, to.b2, s.features());
    narrowed(b1, to.b1, s.parts * h);
    narrowed(filter_bias, to.filter_bias, s.parts * h);
    narrowed(mix1, to.mix1, mixes);
    narrowed(mix2, to.mix2, mixes);
    for (int64_t p = 0; p < s.parts; ++p) {
      narrowed(w1 + p * h * lined(d), to.w1 + p * h * d, h, d, !s.dense);
      narrowed(w2 + p * h * lined(d), to.w2 + p * h * d, h, d, s.dense);
    }
    for (int64_t tap = 0; tap < s.parts * h * s.taps(); ++tap)
      to.filters[tap] = static_cast<T>(std::accumulate(filters + tap * LINE, filters + (tap + 1) * LINE, A(0)));
  }
};

template <typename T, typename A>
void backward(const T* grad, const T* x, Parameters<const T> parameters, T* d_x, Parameters<T> d_parameters,
              const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t d = s.width, h = s.hidden, wide = lined(d), units = s.groups() * s.tiles();
  const A* const none = nullptr;
  Sums<A> sums(threads, Gains<A>::size(s));
  const auto hand_over = [&](int64_t group, A* sum) { Gains<A>(sum, s).hand_over(d_parameters.of(group, s), s); };
#pragma omp parallel num_threads(threads)
  {
    Tile<A> tile(s);
    Rows<A> dy(s.features(), s.lanes()), slope(s.parts * h, s.lanes()), dy_tokens(s.lanes(), padded<A>(d));
    Rows<A>&active = tile.active(s), &into_fc2 = tile.into_fc2(s), &into_fc1 = tile.into_fc1(s);  // then their gradients
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    const int64_t first_unit = dealt(units, me, all), last_unit = dealt(units, me + 1, all);
    int64_t current = -1;
    A* sum = nullptr;
    for (int64_t unit = first_unit; unit < last_unit; ++unit) {
      const int64_t group = unit / s.tiles(), first = unit % s.tiles() * s.tile;
      const int64_t count = std::min(s.tile, s.rows - first), lanes = padded<A>(count);
      const bool begins = group * s.tiles() >= first_unit, ends = (group + 1) * s.tiles() <= last_unit;
      if (group != current) {
        tile.take(parameters.of(current = group, s), s);
        sum = sums.of(me, group, begins, ends);
      }
      Gains<A> gain(sum, s);
      if (count < lanes) dy.fill(A(0));  // tokens beyond the last get no gradient
      for (int64_t p = 0; p < s.parts; ++p) {
        to_lanes(x + s.at(group, p, first), from(tile.x, p * d), count, d);
        to_lanes(grad + s.at(group, p, first), from(dy, p * d), count, d);
      }
      tile.up_to_hidden(s, lanes);
      for (int64_t m = 0; m < s.parts * h; ++m)
        for (int64_t n = 0; n < lanes; n += W) {
          const GeluOf<A> gelu(Vec<A>::loadu(tile.hidden[m] + n));
          gelu.value().store(active[s.place(m)] + n);
          gelu.slope().store(slope[m] + n);
        }
      // fc2: its gains need dy token by token, as it came
      if (s.mixes) mix(tile.mix2(s), active, into_fc2, s.parts);
      add_sums(from(dy, 0), gain.b2, s.features(), lanes);
      for (int64_t p = 0; p < s.parts; ++p) {
        const T* tokens = grad + s.at(group, p, first);
        A* rows = into_fc2[p * h];
        for (int64_t t = 0; t < count; ++t)
          for (int64_t e = 0; e < d; ++e) dy_tokens[t][e] = static_cast<A>(tokens[t * d + e]);
        product<true>(View<A>{rows, into_fc2.step, 1}, none, dy_tokens[0], dy_tokens.step, gain.w2 + p * h * wide, wide, h,
                      count, padded<A>(d));
        product(tile.w2(p, s).transposed(), none, dy[p * d], dy.step, rows, into_fc2.step, h, d, lanes);
      }
      if (s.mixes) {
        add_mix_gains(into_fc2, active, gain.mix2, s.parts, lanes);
        mix(tile.mix2(s).transposed(), into_fc2, active, s.parts);
      }
      for (int64_t m = 0; m < s.parts * h; ++m)
        for (int64_t n = 0; n < lanes; n += W)
          (Vec<A>::loadu(active[s.place(m)] + n) * Vec<A>::loadu(slope[m] + n)).store(tile.hidden[m] + n);
      if (s.side) {
        add_sums(from(tile.hidden, 0), gain.filter_bias, s.parts * h, lanes);
        for (int64_t m = 0; m < s.parts * h; ++m) {
          tile.filter.spread(tile.before[m], tile.filter.in);
          tile.filter.spread(tile.hidden[m], tile.filter.out);
          tile.filter.add_gains(gain.filters + m * s.taps() * LINE);
          tile.filter.apply_transposed(tile.filter.out, tile.of.filters + m * s.taps(), tile.hidden[m]);
        }
      }
      // fc1: its gains need what it read token by token
      add_sums(from(tile.hidden, 0), gain.b1, s.parts * h, lanes);
      for (int64_t p = 0; p < s.parts; ++p) {
        const A* rows = tile.hidden[p * h];
        transpose(into_fc1[p * d], into_fc1.step, tile.tokens[0], tile.tokens.step, d, count);
        product<true>(View<A>{rows, tile.hidden.step, 1}, none, tile.tokens[0], tile.tokens.step, gain.w1 + p * h * wide,
                      wide, h, count, padded<A>(d));
        product(tile.w1(p, s).transposed(), none, rows, tile.hidden.step, tile.x[p * d], tile.x.step, d, h, lanes);
      }
      if (s.mixes) {
        add_mix_gains(tile.x, tile.y, gain.mix1, s.parts, lanes);
        mix(tile.mix1(s).transposed(), tile.x, tile.mixed, s.parts);
      }
      Rows<A>& d_y = s.mixes ? tile.mixed : tile.x;
      const int64_t width = s.features() / s.norms();
      for (int64_t i = 0, e = 0; i < s.norms(); ++i, e += width)
        norm_backward(from(d_y, e), from(tile.normed, e), tile.rstd[i], tile.of.gamma + e, gain.gamma + e,
                      gain.beta + e, width, lanes);
      for (int64_t p = 0; p < s.parts; ++p) {
        const int64_t at = s.at(group, p, first);
        add_from_lanes(from(d_y, p * d), tile.tokens, grad + at, d_x + at, count, d);
      }
      if (begins && ends && (unit + 1) % s.tiles() == 0) hand_over(group, sum);
    }
  }
  sums.hand_over_shared(hand_over);
}

}  // namespace

#define OPERATOR(name, T, A)                                                                                           \
  extern "C" void tcpvit_forward_##name(const T* x, const T* gamma, const T* beta, const T* w1, const T* b1,           \
                                        const T* w2, const T* b2, const T* filters, const T* filter_bias,              \
                                        const T* mix1, const T* mix2, T* y, const Shape* shape, int threads) {         \
    forward<T, A>(x, {gamma, beta, w1, b1, w2, b2, filters, filter_bias, mix1, mix2}, y, *shape, threads);             \
  }                                                                                                                    \
  extern "C" void tcpvit_backward_##name(const T* grad, const T* x, const T* gamma, const T* beta, const T* w1,        \
                                         const T* b1, const T* w2, const T* b2, const T* filters,                      \
                                         const T* filter_bias, const T* mix1, const T* mix2, T* d_x, T* d_gamma,       \
                                         T* d_beta, T* d_w1, T* d_b1, T* d_w2, T* d_b2, T* d_filters,                  \
                                         T* d_filter_bias, T* d_mix1, T* d_mix2, const Shape* shape, int threads) {    \
    backward<T, A>(grad, x, {gamma, beta, w1, b1, w2, b2, filters, filter_bias, mix1, mix2}, d_x,                      \
                   {d_gamma, d_beta, d_w1, d_b1, d_w2, d_b2, d_filters, d_filter_bias, d_mix1, d_mix2}, *shape,        \
                   threads);                                                                                           \
  }

OPERATOR(float32, float, float)
OPERATOR(float64, double, double)
OPERATOR(bfloat16, c10::BFloat16, float)
