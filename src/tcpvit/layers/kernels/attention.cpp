// Attention with small heads, forward and backward, straight from the packed qkv and into the merged output.
//
// torch's kernels are made for heads of 64 and more and want each head in one piece; a TCP-ViT has heads of 4 to 16, and
// those of joint attention lie in C pieces. Here one (group, head) is a unit of work, copied into the cache first.
// Forward, a vector holds one number each of as many queries, and keys and values are broadcast one by one. Backward,
// vectors run over the keys; for the gradient of the queries a tile of scores is transposed. So no sum ever crosses the
// lanes of a vector, and what is loaded is used several times.
//
// qkv  [group][part] (N, 3, H, D)     a head is made of `parts` pieces of D numbers: 1 for slice attention, C for joint
// out  [group][part] (N, H, D)
// lse  (groups, H, N)                 log Σ exp of each row of scores, for the backward pass
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace {

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

using at::vec::cast;
using at::vec::clamp_min;
using at::vec::fmadd;
template <typename A>
using Vec = at::vec::Vectorized<A>;

// keys (forward) or queries (backward) that use what was loaded once; a vector's worth of tokens is a multiple of it
template <typename A>
constexpr int TOGETHER = Vec<A>::size() < 8 ? Vec<A>::size() : 8;

// 2^x between -1/2 and 1/2, highest power first: minimax, relative error 7e-8
constexpr float POWER[6] = {0.00132764725f, 0.00967554096f, 0.0555071309f, 0.240221202f, 0.693146944f, 1.00000012f};
constexpr double LOG2E = 1.4426950408889634, LN2 = 0.6931471805599453;

// 2^x for x up to 0 or a rounding error above; scores are kept in units of log 2 for its sake.
inline Vec<double> exp2(Vec<double> x) { return (x * Vec<double>(LN2)).exp(); }
inline Vec<float> exp2(Vec<float> x) {
  const Vec<float> round(12582912.0f);  // 1.5 · 2^23: what is added to it is rounded to a whole number in its last bits
  x = clamp_min(x, Vec<float>(-126.0f));
  const Vec<float> whole = x + round, part = x - (whole - round);  // part is between -1/2 and 1/2
  Vec<float> power(POWER[0]);
  for (int i = 1; i < 6; ++i) power = fmadd(power, part, Vec<float>(POWER[i]));
  const auto exponent = cast<int32_t>(whole) << Vec<int32_t>(23);
  return cast<float>(cast<int32_t>(power) + exponent);
}

// The working memory of a thread: rows of `step` numbers, zero at first.
template <typename A>
struct Rows {
  int64_t step;
  std::vector<A> data;
  Rows(int64_t count, int64_t step) : step(step), data(count * step) {}
  A* operator[](int64_t i) { return data.data() + i * step; }
};

// Copies `count` rows of `size` numbers. SIZE is the size if it is known when this is compiled, else 0.
template <int SIZE, typename From, typename To>
void copy(const From* from, int64_t from_step, To* to, int64_t to_step, int64_t count, int64_t size) {
  for (int64_t n = 0; n < count; ++n, from += from_step, to += to_step)
    for (int64_t e = 0; e < (SIZE ? SIZE : size); ++e) to[e] = static_cast<To>(from[e]);
}

template <typename From, typename To>
void copy(const From* from, int64_t from_step, To* to, int64_t to_step, int64_t count, int64_t size) {
  const auto kind = size == 4    ? copy<4, From, To>
                    : size == 5  ? copy<5, From, To>
                    : size == 16 ? copy<16, From, To>
                                 : copy<0, From, To>;
  kind(from, from_step, to, to_step, count, size);
}

// Copies the pieces of a head, token by token, so that tokens[n][e] is number e of token n.
// which: 0 queries, 1 keys, 2 values of a packed tensor that has `many` such rows a token.
template <typename T, typename A>
void pack(Rows<A>& tokens, const T* packed, const Shape& s, int64_t g, int64_t h, int64_t which, int64_t many) {
  for (int64_t p = 0; p < s.parts; ++p) {
    const T* from = packed + s.at(g, p, 0, many) + which * s.row() + h * s.size;
    copy(from, many * s.row(), tokens[0] + p * s.size, tokens.step, s.tokens, s.size);
  }
}

template <typename T, typename A>
void unpack(Rows<A>& tokens, T* packed, const Shape& s, int64_t g, int64_t h, int64_t which, int64_t many) {
  for (int64_t p = 0; p < s.parts; ++p) {
    T* to = packed + s.at(g, p, 0, many) + which * s.row() + h * s.size;
    copy(tokens[0] + p * s.size, tokens.step, to, many * s.row(), s.tokens, s.size);
  }
}

// to[j][i] = from[i][j] for the first `rows` rows and `columns` columns.
template <typename A>
void transpose(Rows<A>& from, Rows<A>& to, int64_t rows, int64_t columns) {
  if (rows < 8 || columns < 8) {  // hardly worth shuffling vectors
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = 0; i < rows; ++i) to[j][i] = from[i][j];
    return;
  }
  at::vec::transpose_mxn<A>(from[0], from.step, to[0], to.step, static_cast<int>(rows), static_cast<int>(columns));
}

// products[r] = Σ_e row[e] · tokens[r][e] for R tokens, where row[e] is a vector.
template <int R, typename A>
void dot(Vec<A>* products, const Vec<A>* row, const A* tokens, int64_t width) {
  for (int r = 0; r < R; ++r) products[r] = Vec<A>(0);
  for (int64_t e = 0; e < width; ++e)
    for (int r = 0; r < R; ++r) products[r] = fmadd(row[e], Vec<A>(tokens[r * width + e]), products[r]);
}

// row[e] += Σ_r weights[r] · tokens[r][e] for R tokens.
template <int R, typename A>
void add(Vec<A>* row, const Vec<A>* weights, const A* tokens, int64_t width) {
  for (int64_t e = 0; e < width; ++e) {
    Vec<A> total = row[e];
    for (int r = 0; r < R; ++r) total = fmadd(weights[r], Vec<A>(tokens[r * width + e]), total);
    row[e] = total;
  }
}

template <typename A>
void load(Vec<A>* row, Rows<A>& rows, int64_t at, int64_t width) {
  for (int64_t e = 0; e < width; ++e) row[e] = Vec<A>::loadu(rows[e] + at);
}

template <typename A>
void store(const Vec<A>* row, Rows<A>& rows, int64_t at, int64_t width) {
  for (int64_t e = 0; e < width; ++e) row[e].store(rows[e] + at);
}

// WIDTH below is the width of the head if it is known when this is compiled, else 0.
template <int WIDTH>
constexpr int64_t HELD = WIDTH ? WIDTH : MAX_WIDTH;

template <typename A>
struct Forward {
  Rows<A> tokens, queries, keys, values, result, scores, lse;  // queries and result by rows over tokens

  Forward(const Shape& s, int64_t step)
      : tokens(step, s.width()), queries(s.width(), step), keys(step, s.width()), values(step, s.width()),
        result(s.width(), step), scores(step, Vec<A>::size()), lse(1, step) {}

  // R keys from j on: their scores, and the largest so far
  template <int R>
  void score(const Vec<A>* query, Vec<A>& top, int64_t j, int64_t width) {
    Vec<A> score[R];
    dot<R>(score, query, keys[j], width);
    for (int r = 0; r < R; ++r) {
      score[r].store(scores[j + r]);
      top = clamp_min(score[r], top);
    }
  }

  template <int R>
  void weigh(Vec<A>* total, Vec<A>& all, Vec<A> top, int64_t j, int64_t width) {
    Vec<A> weight[R];
    for (int r = 0; r < R; ++r) {
      weight[r] = exp2(Vec<A>::loadu(scores[j + r]) - top);
      all = all + weight[r];
    }
    add<R>(total, weight, values[j], width);
  }

  template <int WIDTH>
  void run(const Shape& s) {
    const int64_t width = WIDTH ? WIDTH : s.width(), whole = s.tokens / TOGETHER<A> * TOGETHER<A>;
    const Vec<A> scale(static_cast<A>(s.scale * LOG2E));
    for (int64_t i = 0; i < s.tokens; i += Vec<A>::size()) {
      Vec<A> query[HELD<WIDTH>], total[HELD<WIDTH>], all(0), top(-std::numeric_limits<A>::infinity());
      load(query, queries, i, width);
      for (int64_t e = 0; e < width; ++e) {
        query[e] = query[e] * scale;
        total[e] = Vec<A>(0);
      }
      for (int64_t j = 0; j < whole; j += TOGETHER<A>) score<TOGETHER<A>>(query, top, j, width);
      for (int64_t j = whole; j < s.tokens; ++j) score<1>(query, top, j, width);
      for (int64_t j = 0; j < whole; j += TOGETHER<A>) weigh<TOGETHER<A>>(total, all, top, j, width);
      for (int64_t j = whole; j < s.tokens; ++j) weigh<1>(total, all, top, j, width);
      for (int64_t e = 0; e < width; ++e) total[e] = total[e] / all;
      store(total, result, i, width);
      fmadd(top, Vec<A>(LN2), all.log()).store(lse[0] + i);
    }
  }
};

// Tokens beyond the last are zero. As queries they add nothing; what they get as keys is never read.
// Keys are scaled, by the scale of the scores and to units of log 2.
template <typename A>
struct Backward {
  Rows<A> queries, keys, grads, tokens;               // token by token
  Rows<A> keys_t, values_t, d_queries, d_keys, d_values;  // by rows over tokens
  Rows<A> tile, tile_t, lse, mean;                    // mean: Σ_j P_ij dP_ij = Σ_e dO_ie O_ie

  Backward(const Shape& s, int64_t step)
      : queries(step, s.width()), keys(step, s.width()), grads(step, s.width()), tokens(step, s.width()),
        keys_t(s.width(), step), values_t(s.width(), step), d_queries(s.width(), step), d_keys(s.width(), step),
        d_values(s.width(), step), tile(Vec<A>::size(), Vec<A>::size()), tile_t(Vec<A>::size(), Vec<A>::size()),
        lse(1, step), mean(1, step) {}

  // The keys of one vector against several queries from i on, whose gradients of scores go to row r of the tile.
  void step(const Vec<A>* key, const Vec<A>* value, Vec<A>* d_key, Vec<A>* d_value, int64_t i, int64_t r, int64_t width) {
    Vec<A> weight[TOGETHER<A>], d_score[TOGETHER<A>];
    dot<TOGETHER<A>>(weight, key, queries[i + r], width);
    dot<TOGETHER<A>>(d_score, value, grads[i + r], width);
    for (int64_t q = 0; q < TOGETHER<A>; ++q) {
      weight[q] = exp2(weight[q] - Vec<A>(lse[0][i + r + q]));
      d_score[q] = weight[q] * (d_score[q] - Vec<A>(mean[0][i + r + q]));
      d_score[q].store(tile[r + q]);
    }
    add<TOGETHER<A>>(d_key, d_score, queries[i + r], width);
    add<TOGETHER<A>>(d_value, weight, grads[i + r], width);
  }

  template <int WIDTH>
  void run(const Shape& s) {
    constexpr int64_t W = Vec<A>::size();
    const int64_t width = WIDTH ? WIDTH : s.width();
    std::fill(d_queries.data.begin(), d_queries.data.end(), A(0));
    for (int64_t j = 0; j < s.tokens; j += W) {
      Vec<A> key[HELD<WIDTH>], value[HELD<WIDTH>], d_key[HELD<WIDTH>], d_value[HELD<WIDTH>];
      load(key, keys_t, j, width);
      load(value, values_t, j, width);
      for (int64_t e = 0; e < width; ++e) d_key[e] = d_value[e] = Vec<A>(0);
      for (int64_t i = 0; i < s.tokens; i += W) {
        for (int64_t r = 0; r < std::min(W, s.tokens - i); r += TOGETHER<A>)
          step(key, value, d_key, d_value, i, r, width);
        transpose(tile, tile_t, W, W);
        Vec<A> d_query[HELD<WIDTH>], d_score[W];
        load(d_query, d_queries, i, width);
        load(d_score, tile_t, 0, std::min(W, s.tokens - j));
        for (int64_t n = std::min(W, s.tokens - j); n < W; ++n) d_score[n] = Vec<A>(0);
        add<W>(d_query, d_score, keys[j], width);
        store(d_query, d_queries, i, width);
      }
      for (int64_t e = 0; e < width; ++e) d_key[e] = d_key[e] * Vec<A>(static_cast<A>(s.scale));
      store(d_key, d_keys, j, width);
      store(d_value, d_values, j, width);
    }
  }
};

template <template <typename> class Pass, typename A>
void run(Pass<A>& pass, const Shape& s) {
  if constexpr (std::is_same_v<A, float>) switch (s.width()) {
      case 4: return pass.template run<4>(s);
      case 5: return pass.template run<5>(s);
      case 8: return pass.template run<8>(s);
      case 12: return pass.template run<12>(s);
      case 16: return pass.template run<16>(s);
    }
  pass.template run<0>(s);
}

template <typename T, typename A>
void forward(const T* qkv, T* out, A* lse, const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
#pragma omp parallel num_threads(threads)
  {
    Forward<A> pass(s, (s.tokens + W - 1) / W * W);
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.groups * s.heads; ++unit) {
      const int64_t g = unit / s.heads, h = unit % s.heads;
      pack(pass.tokens, qkv, s, g, h, 0, 3);
      transpose(pass.tokens, pass.queries, s.tokens, s.width());
      pack(pass.keys, qkv, s, g, h, 1, 3);
      pack(pass.values, qkv, s, g, h, 2, 3);
      run(pass, s);
      std::copy_n(pass.lse[0], s.tokens, lse + unit * s.tokens);
      transpose(pass.result, pass.tokens, s.width(), s.tokens);
      unpack(pass.tokens, out, s, g, h, 0, 1);
    }
  }
}

template <typename T, typename A>
void backward(const T* grad_out, const T* qkv, const T* out, const A* lse, T* grad_qkv, const Shape& s, int threads) {
  constexpr int64_t W = Vec<A>::size();
#pragma omp parallel num_threads(threads)
  {
    Backward<A> pass(s, (s.tokens + W - 1) / W * W);
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.groups * s.heads; ++unit) {
      const int64_t g = unit / s.heads, h = unit % s.heads;
      pack(pass.tokens, out, s, g, h, 0, 1);
      pack(pass.grads, grad_out, s, g, h, 0, 1);
      for (int64_t n = 0; n < s.tokens; ++n)
        pass.mean[0][n] = std::inner_product(pass.grads[n], pass.grads[n] + s.width(), pass.tokens[n], A(0));
      pack(pass.tokens, qkv, s, g, h, 2, 3);
      transpose(pass.tokens, pass.values_t, s.tokens, s.width());
      pack(pass.queries, qkv, s, g, h, 0, 3);
      pack(pass.keys, qkv, s, g, h, 1, 3);
      for (A& number : pass.keys.data) number *= static_cast<A>(s.scale * LOG2E);
      transpose(pass.keys, pass.keys_t, s.tokens, s.width());
      for (int64_t n = 0; n < s.tokens; ++n) pass.lse[0][n] = lse[unit * s.tokens + n] * static_cast<A>(LOG2E);
      run(pass, s);
      for (A& number : pass.d_queries.data) number *= static_cast<A>(LN2);
      int64_t which = 0;
      for (Rows<A>* rows : {&pass.d_queries, &pass.d_keys, &pass.d_values}) {
        transpose(*rows, pass.tokens, s.width(), s.tokens);
        unpack(pass.tokens, grad_qkv, s, g, h, which++, 3);
      }
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
