// Attention with small heads, forward and backward, straight from the packed qkv and into the merged output.
//
// torch's kernels are made for heads of 64 and more; a TCP-ViT has heads of 4 to 16. Here one (group, head) is a unit
// of work. Forward, a vector holds one number each of as many queries, and keys and values are broadcast one by one: no
// sum crosses the lanes of a vector. Backward, vectors run over the keys, and four queries go together so that what is
// loaded is used four times.
//
// qkv  [group][part] (N, 3, H, D)     a head is made of `parts` pieces of D numbers: 1 for slice attention, C for joint
// out  [group][part] (N, H, D)
// lse  (groups, H, N)                 log Σ exp of each row of scores, for the backward pass
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int64_t QUERIES = 4;     // rows of scores that the backward pass computes together
constexpr int64_t MAX_WIDTH = 64;  // of a head

struct Shape {
  int64_t groups, parts, tokens, heads, size;  // a head has parts · size numbers
  int64_t group_step, part_step;               // in tokens: how far apart groups and parts lie
  double scale;

  int64_t width() const { return parts * size; }
  int64_t row() const { return heads * size; }
  // where (group, part, token) starts, for `many` rows of H·D numbers a token (3 in qkv, 1 in out)
  int64_t at(int64_t group, int64_t part, int64_t token, int64_t many) const {
    return (group * group_step + part * part_step + token) * many * row();
  }
};

template <typename A>
using Vec = at::vec::Vectorized<A>;

inline Vec<float> exponential(Vec<float> x) { return x.exp_u20(); }
inline Vec<double> exponential(Vec<double> x) { return x.exp(); }

template <typename A>
A sum(Vec<A> x) {
  return at::vec::vec_reduce_all<A>([](const Vec<A>& a, const Vec<A>& b) { return a + b; }, x);
}

// The working memory of a thread: rows over tokens, padded to full vectors.
template <typename A>
struct Rows {
  int64_t step;
  std::vector<A> data;
  Rows(int64_t count, int64_t step) : step(step), data(count * step) {}
  A* operator[](int64_t i) { return data.data() + i * step; }
  void zero() { std::fill(data.begin(), data.end(), A(0)); }
};

// which: 0 queries, 1 keys, 2 values. rows[e][n] = that number of that head at token n.
template <typename T, typename A>
void gather(Rows<A>& rows, const T* packed, const Shape& s, int64_t g, int64_t h, int64_t which, int64_t many) {
  for (int64_t p = 0; p < s.parts; ++p)
    for (int64_t n = 0; n < s.tokens; ++n) {
      const T* from = packed + s.at(g, p, n, many) + which * s.row() + h * s.size;
      for (int64_t e = 0; e < s.size; ++e) rows[p * s.size + e][n] = static_cast<A>(from[e]);
    }
}

template <typename T, typename A>
void scatter(Rows<A>& rows, T* packed, const Shape& s, int64_t g, int64_t h, int64_t which, int64_t many) {
  for (int64_t p = 0; p < s.parts; ++p)
    for (int64_t n = 0; n < s.tokens; ++n) {
      T* to = packed + s.at(g, p, n, many) + which * s.row() + h * s.size;
      for (int64_t e = 0; e < s.size; ++e) to[e] = static_cast<T>(rows[p * s.size + e][n]);
    }
}

// products[r][j] = Σ_e left[e][i+r] · right[e][j], for four rows from i on (those beyond the last token repeat it).
template <typename A>
void multiply(Rows<A>& products, Rows<A>& left, Rows<A>& right, const Shape& s, int64_t i) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t last = s.tokens - 1;
  const int64_t row[QUERIES] = {i, std::min(i + 1, last), std::min(i + 2, last), std::min(i + 3, last)};
  for (int64_t j = 0; j < right.step; j += W) {
    Vec<A> total[QUERIES] = {Vec<A>(0), Vec<A>(0), Vec<A>(0), Vec<A>(0)};
    for (int64_t e = 0; e < s.width(); ++e) {
      const Vec<A> other = Vec<A>::loadu(right[e] + j);
      const A* one = left[e];
      for (int64_t r = 0; r < QUERIES; ++r) total[r] = at::vec::fmadd(Vec<A>(one[row[r]]), other, total[r]);
    }
    for (int64_t r = 0; r < QUERIES; ++r) total[r].store(products[r] + j);
  }
}

// The numbers of a head, token by token: packed[n * width + e].
template <typename T, typename A>
void pack(A* packed, const T* from, const Shape& s, int64_t g, int64_t h, int64_t which, int64_t many) {
  for (int64_t n = 0; n < s.tokens; ++n)
    for (int64_t p = 0; p < s.parts; ++p) {
      const T* piece = from + s.at(g, p, n, many) + which * s.row() + h * s.size;
      for (int64_t e = 0; e < s.size; ++e) *packed++ = static_cast<A>(piece[e]);
    }
}

// One (group, head): a vector holds one number each of as many queries, so no sum ever crosses its lanes.
// WIDTH is the width of the head if it is known when this is compiled, else 0.
template <int WIDTH, typename A>
void forward_head(Rows<A>& queries, const A* keys, const A* values, Rows<A>& result, A* scores, A* lse, const Shape& s) {
  constexpr int64_t W = Vec<A>::size();
  constexpr int64_t HELD = WIDTH ? WIDTH : MAX_WIDTH;
  const int64_t width = WIDTH ? WIDTH : s.width();
  const Vec<A> scale(static_cast<A>(s.scale));
  for (int64_t i = 0; i < s.tokens; i += W) {
    Vec<A> query[HELD], total[HELD];
    for (int64_t e = 0; e < width; ++e) query[e] = Vec<A>::loadu(queries[e] + i) * scale;
    Vec<A> top(-std::numeric_limits<A>::infinity());
    for (int64_t j = 0; j < s.tokens; ++j) {
      const A* key = keys + j * width;
      Vec<A> score = query[0] * Vec<A>(key[0]);
      for (int64_t e = 1; e < width; ++e) score = at::vec::fmadd(query[e], Vec<A>(key[e]), score);
      score.store(scores + j * W);
      top = at::vec::maximum(top, score);
    }
    Vec<A> all(0);
    for (int64_t e = 0; e < width; ++e) total[e] = Vec<A>(0);
    for (int64_t j = 0; j < s.tokens; ++j) {
      const A* value = values + j * width;
      const Vec<A> weight = exponential(Vec<A>::loadu(scores + j * W) - top);
      all = all + weight;
      for (int64_t e = 0; e < width; ++e) total[e] = at::vec::fmadd(weight, Vec<A>(value[e]), total[e]);
    }
    for (int64_t e = 0; e < width; ++e) (total[e] / all).store(result[e] + i);
    (top + all.log()).store(lse + i);
  }
}

template <typename T, typename A>
void forward(const T* qkv, T* out, A* lse, const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t step = (s.tokens + W - 1) / W * W;
#pragma omp parallel num_threads(threads)
  {
    Rows<A> queries(s.width(), step), result(s.width(), step), scores(s.tokens, W), row(1, step);
    Rows<A> keys(s.tokens, s.width()), values(s.tokens, s.width());
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.groups * s.heads; ++unit) {
      const int64_t g = unit / s.heads, h = unit % s.heads;
      gather(queries, qkv, s, g, h, 0, 3);
      pack(keys[0], qkv, s, g, h, 1, 3);
      pack(values[0], qkv, s, g, h, 2, 3);
      auto head = s.width() == 4    ? forward_head<4, A>
                  : s.width() == 5  ? forward_head<5, A>
                  : s.width() == 8  ? forward_head<8, A>
                  : s.width() == 12 ? forward_head<12, A>
                  : s.width() == 16 ? forward_head<16, A>
                  : s.width() == 32 ? forward_head<32, A>
                                    : forward_head<0, A>;
      head(queries, keys[0], values[0], result, scores[0], row[0], s);
      std::copy(row[0], row[0] + s.tokens, lse + unit * s.tokens);
      scatter(result, out, s, g, h, 0, 1);
    }
  }
}

// From scores and the gradient of the weights to weights and the gradient of the scores, for query i; padding gives 0.
template <typename A>
void differentiate(A* weights, A* d_scores, A lse, A dot, const Shape& s, int64_t step) {
  constexpr int64_t W = Vec<A>::size();
  const Vec<A> scale(static_cast<A>(s.scale)), shift(lse), mean(dot);
  for (int64_t j = 0; j < step; j += W) {
    const Vec<A> weight = exponential(at::vec::fmadd(Vec<A>::loadu(weights + j), scale, Vec<A>(0) - shift));
    weight.store(weights + j);
    (weight * (Vec<A>::loadu(d_scores + j) - mean) * scale).store(d_scores + j);
  }
  std::fill(weights + s.tokens, weights + step, A(0));
  std::fill(d_scores + s.tokens, d_scores + step, A(0));
}

// Adds what four queries from i on give to the gradients of keys and values, and writes those of the queries.
// PAIR numbers of the head go together, so that weights and scores are loaded once for both.
template <int PAIR, typename A>
void accumulate(
    Rows<A>& queries, Rows<A>& keys, Rows<A>& grads, Rows<A>& weights, Rows<A>& d_scores, Rows<A>& d_queries,
    Rows<A>& d_keys, Rows<A>& d_values, const Shape& s, int64_t i, int64_t e) {
  constexpr int64_t W = Vec<A>::size();
  Vec<A> query[PAIR][QUERIES], grad[PAIR][QUERIES], d_query[PAIR][QUERIES];
  for (int p = 0; p < PAIR; ++p)
    for (int64_t r = 0; r < QUERIES; ++r) {
      const int64_t row = std::min(i + r, s.tokens - 1);
      query[p][r] = Vec<A>(queries[e + p][row]);
      grad[p][r] = Vec<A>(grads[e + p][row]);
      d_query[p][r] = Vec<A>(0);
    }
  for (int64_t j = 0; j < keys.step; j += W) {
    Vec<A> key[PAIR], d_key[PAIR], d_value[PAIR];
    for (int p = 0; p < PAIR; ++p) {
      key[p] = Vec<A>::loadu(keys[e + p] + j);
      d_key[p] = Vec<A>::loadu(d_keys[e + p] + j);
      d_value[p] = Vec<A>::loadu(d_values[e + p] + j);
    }
    for (int64_t r = 0; r < QUERIES; ++r) {
      const Vec<A> d_score = Vec<A>::loadu(d_scores[r] + j), weight = Vec<A>::loadu(weights[r] + j);
      for (int p = 0; p < PAIR; ++p) {
        d_query[p][r] = at::vec::fmadd(d_score, key[p], d_query[p][r]);
        d_key[p] = at::vec::fmadd(d_score, query[p][r], d_key[p]);
        d_value[p] = at::vec::fmadd(weight, grad[p][r], d_value[p]);
      }
    }
    for (int p = 0; p < PAIR; ++p) {
      d_key[p].store(d_keys[e + p] + j);
      d_value[p].store(d_values[e + p] + j);
    }
  }
  for (int p = 0; p < PAIR; ++p)
    for (int64_t r = 0; r < std::min(QUERIES, s.tokens - i); ++r) d_queries[e + p][i + r] = sum(d_query[p][r]);
}

template <typename T, typename A>
void backward(const T* grad_out, const T* qkv, const T* out, const A* lse, T* grad_qkv, const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t step = (s.tokens + W - 1) / W * W;
#pragma omp parallel num_threads(threads)
  {
    Rows<A> queries(s.width(), step), keys(s.width(), step), values(s.width(), step);
    Rows<A> outputs(s.width(), step), grads(s.width(), step);
    Rows<A> d_queries(s.width(), step), d_keys(s.width(), step), d_values(s.width(), step);
    Rows<A> weights(QUERIES, step), d_scores(QUERIES, step);
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.groups * s.heads; ++unit) {
      const int64_t g = unit / s.heads, h = unit % s.heads;
      gather(queries, qkv, s, g, h, 0, 3);
      gather(keys, qkv, s, g, h, 1, 3);
      gather(values, qkv, s, g, h, 2, 3);
      gather(outputs, out, s, g, h, 0, 1);
      gather(grads, grad_out, s, g, h, 0, 1);
      d_keys.zero();
      d_values.zero();
      for (int64_t i = 0; i < s.tokens; i += QUERIES) {
        multiply(weights, queries, keys, s, i);
        multiply(d_scores, grads, values, s, i);
        for (int64_t r = 0; r < QUERIES; ++r) {
          if (i + r >= s.tokens) {  // a row beyond the last adds nothing
            std::fill(weights[r], weights[r] + step, A(0));
            std::fill(d_scores[r], d_scores[r] + step, A(0));
            continue;
          }
          A dot = 0;  // Σ_j P_ij dP_ij = Σ_e dO_ie O_ie
          for (int64_t e = 0; e < s.width(); ++e) dot += grads[e][i + r] * outputs[e][i + r];
          differentiate(weights[r], d_scores[r], lse[unit * s.tokens + i + r], dot, s, step);
        }
        int64_t e = 0;
        for (; e + 1 < s.width(); e += 2)
          accumulate<2>(queries, keys, grads, weights, d_scores, d_queries, d_keys, d_values, s, i, e);
        if (e < s.width())
          accumulate<1>(queries, keys, grads, weights, d_scores, d_queries, d_keys, d_values, s, i, e);
      }
      scatter(d_queries, grad_qkv, s, g, h, 0, 3);
      scatter(d_keys, grad_qkv, s, g, h, 1, 3);
      scatter(d_values, grad_qkv, s, g, h, 2, 3);
    }
  }
}

}  // namespace

#define OPERATOR(name, T, A)                                                                                       \
  extern "C" void tcpvit_forward_##name(const T* qkv, T* out, A* lse, const Shape* shape, int threads) {           \
    forward<T, A>(qkv, out, lse, *shape, threads);                                                                 \
  }                                                                                                                \
  extern "C" void tcpvit_backward_##name(                                                                          \
      const T* grad, const T* qkv, const T* out, const A* lse, T* grad_qkv, const Shape* shape, int threads) {     \
    backward<T, A>(grad, qkv, out, lse, grad_qkv, *shape, threads);                                                \
  }

OPERATOR(float32, float, float)
OPERATOR(float64, double, double)
OPERATOR(bfloat16, c10::BFloat16, float)
