// Attention with small heads, forward and backward, straight from the packed qkv and into the merged output.
//
// torch's kernels are made for heads of 64 and more; a TCP-ViT has heads of 4 to 32. Here one (group, head) is a unit
// of work: its keys and values are transposed once into rows over the tokens, so that every loop runs over tokens in
// full vectors. Four queries go together, so that each vector of keys is loaded once for four of them.
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

constexpr int64_t QUERIES = 4;  // rows of scores that are computed together

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

template <typename A>
A largest(Vec<A> x) {
  return at::vec::vec_reduce_all<A>([](const Vec<A>& a, const Vec<A>& b) { return at::vec::maximum(a, b); }, x);
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

// scores[r][j] = Σ_e queries[e][i+r] · keys[e][j] · scale, for the rows i … i+QUERIES−1 (rows beyond the last repeat it).
template <typename A>
void score(Rows<A>& scores, Rows<A>& queries, Rows<A>& keys, const Shape& s, int64_t i) {
  constexpr int64_t W = Vec<A>::size();
  const A scale = static_cast<A>(s.scale);
  int64_t row[QUERIES];
  for (int64_t r = 0; r < QUERIES; ++r) row[r] = std::min(i + r, s.tokens - 1);
  for (int64_t j = 0; j < keys.step; j += W) {
    Vec<A> total[QUERIES] = {Vec<A>(0), Vec<A>(0), Vec<A>(0), Vec<A>(0)};
    for (int64_t e = 0; e < s.width(); ++e) {
      const Vec<A> key = Vec<A>::loadu(keys[e] + j);
      const A* query = queries[e];
      for (int64_t r = 0; r < QUERIES; ++r) total[r] = at::vec::fmadd(Vec<A>(query[row[r]]), key, total[r]);
    }
    for (int64_t r = 0; r < QUERIES; ++r) (total[r] * Vec<A>(scale)).store(scores[r] + j);
  }
}

template <typename T, typename A>
void forward(const T* qkv, T* out, A* lse, const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t step = (s.tokens + W - 1) / W * W;
#pragma omp parallel num_threads(threads)
  {
    Rows<A> queries(s.width(), step), keys(s.width(), step), values(s.width(), step), result(s.width(), step);
    Rows<A> weights(QUERIES, step);
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.groups * s.heads; ++unit) {
      const int64_t g = unit / s.heads, h = unit % s.heads;
      gather(queries, qkv, s, g, h, 0, 3);
      gather(keys, qkv, s, g, h, 1, 3);
      gather(values, qkv, s, g, h, 2, 3);
      for (int64_t i = 0; i < s.tokens; i += QUERIES) {
        score(weights, queries, keys, s, i);
        const int64_t rows = std::min(QUERIES, s.tokens - i);
        A normaliser[QUERIES];
        for (int64_t r = 0; r < rows; ++r) {
          A* weight = weights[r];
          std::fill(weight + s.tokens, weight + step, -std::numeric_limits<A>::infinity());
          Vec<A> most = Vec<A>::loadu(weight);
          for (int64_t j = W; j < step; j += W) most = at::vec::maximum(most, Vec<A>::loadu(weight + j));
          const A top = largest(most);
          Vec<A> total(0);
          for (int64_t j = 0; j < step; j += W) {
            const Vec<A> w = exponential(Vec<A>::loadu(weight + j) - Vec<A>(top));
            w.store(weight + j);
            total = total + w;
          }
          const A all = sum(total);
          normaliser[r] = A(1) / all;
          lse[unit * s.tokens + i + r] = top + std::log(all);
        }
        for (int64_t e = 0; e < s.width(); ++e) {
          Vec<A> total[QUERIES] = {Vec<A>(0), Vec<A>(0), Vec<A>(0), Vec<A>(0)};
          const A* value = values[e];
          for (int64_t j = 0; j < step; j += W) {
            const Vec<A> v = Vec<A>::loadu(value + j);
            for (int64_t r = 0; r < QUERIES; ++r) total[r] = at::vec::fmadd(Vec<A>::loadu(weights[r] + j), v, total[r]);
          }
          for (int64_t r = 0; r < rows; ++r) result[e][i + r] = sum(total[r]) * normaliser[r];
        }
      }
      scatter(result, out, s, g, h, 0, 1);
    }
  }
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
        const int64_t rows = std::min(QUERIES, s.tokens - i);
        score(weights, queries, keys, s, i);
        for (int64_t r = 0; r < QUERIES; ++r) {
          A* weight = weights[r];
          A* d_score = d_scores[r];
          if (r >= rows) {  // a row beyond the last adds nothing
            std::fill(weight, weight + step, A(0));
            std::fill(d_score, d_score + step, A(0));
            continue;
          }
          const Vec<A> shift(lse[unit * s.tokens + i + r]);
          std::fill(weight + s.tokens, weight + step, -std::numeric_limits<A>::infinity());
          A dot = 0;  // Σ_j P_ij dP_ij = Σ_e dO_ie O_ie
          for (int64_t e = 0; e < s.width(); ++e) dot += grads[e][i + r] * outputs[e][i + r];
          for (int64_t j = 0; j < step; j += W) {
            const Vec<A> w = exponential(Vec<A>::loadu(weight + j) - shift);
            w.store(weight + j);
            Vec<A> d_weight(0);
            for (int64_t e = 0; e < s.width(); ++e)
              d_weight = at::vec::fmadd(Vec<A>(grads[e][i + r]), Vec<A>::loadu(values[e] + j), d_weight);
            (w * (d_weight - Vec<A>(dot)) * Vec<A>(static_cast<A>(s.scale))).store(d_score + j);
          }
        }
        for (int64_t e = 0; e < s.width(); ++e) {
          Vec<A> d_query[QUERIES] = {Vec<A>(0), Vec<A>(0), Vec<A>(0), Vec<A>(0)};
          Vec<A> query[QUERIES], grad[QUERIES];
          for (int64_t r = 0; r < QUERIES; ++r) {
            const int64_t row = std::min(i + r, s.tokens - 1);
            query[r] = Vec<A>(queries[e][row]);
            grad[r] = Vec<A>(grads[e][row]);
          }
          A *key = keys[e], *d_key = d_keys[e], *d_value = d_values[e];
          for (int64_t j = 0; j < step; j += W) {
            const Vec<A> k = Vec<A>::loadu(key + j);
            Vec<A> dk = Vec<A>::loadu(d_key + j), dv = Vec<A>::loadu(d_value + j);
            for (int64_t r = 0; r < QUERIES; ++r) {
              const Vec<A> ds = Vec<A>::loadu(d_scores[r] + j);
              d_query[r] = at::vec::fmadd(ds, k, d_query[r]);
              dk = at::vec::fmadd(ds, query[r], dk);
              dv = at::vec::fmadd(Vec<A>::loadu(weights[r] + j), grad[r], dv);
            }
            dk.store(d_key + j);
            dv.store(d_value + j);
          }
          for (int64_t r = 0; r < rows; ++r) d_queries[e][i + r] = sum(d_query[r]);
        }
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
