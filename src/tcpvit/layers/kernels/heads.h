// Softmax attention of one head, forward and backward, with tokens in the lanes of vectors.
//
// torch's kernels are made for heads of 64 and more; a TCP-ViT has many of 4 to 16. Number e of token t is rows[e][t], so
// a head may lie in pieces. Forward, a vector holds as many queries, and keys and values are broadcast one by one;
// backward, it holds as many keys, and for the gradient of the queries a tile of scores is transposed. So hardly any sum
// crosses the lanes. Of the tokens that are left over (65 = 4·16 + 1) each is taken by itself, with the others in lanes.
// Scores are kept in units of log 2, for the sake of exp2.
//
// Rows go on for a vector beyond the last token; what is read there is not used, and what is written there is arbitrary.
#pragma once
#include "vectors.h"

namespace {

// Scores that are known to be no larger need no maximum to be taken off: 2^±50, and sums of them, are ordinary numbers.
constexpr double BOUND = 50;

struct Head {
  int64_t tokens, width;
  double scale;
};

template <typename A>
struct Row {  // the rows of a head, by a table of where they begin
  A* const* of;
  A* operator[](int64_t e) const { return of[e]; }
};

// tokens that are broadcast together, so that what is in the lanes is loaded once for them
template <typename A>
constexpr int TOGETHER = Vec<A>::size() < 8 ? Vec<A>::size() : 8;

// Vectors of queries (forward) or keys (backward) that are taken abreast, so that what is broadcast serves them all: with
// TOGETHER of them their sums fill half of the registers.
#ifdef CPU_CAPABILITY_AVX512
constexpr int ABREAST = 2;
#else
constexpr int ABREAST = 1;
#endif

template <typename A>
struct Work {  // of a thread
  Rows<A> scores, tiles, tile_t, held;
  std::vector<std::vector<A*>> tables;  // for the rows of a head
  explicit Work(const Head& s)
      : scores(ABREAST * s.tokens + 2 * Vec<A>::size(), Vec<A>::size()),
        tiles(ABREAST * Vec<A>::size(), Vec<A>::size()), tile_t(Vec<A>::size(), Vec<A>::size()),
        held(4, s.width * ABREAST * Vec<A>::size()), tables(7, std::vector<A*>(s.width)) {}
};

// P vectors for each number of a head: of as many numbers as are known when this is compiled, or in working memory.
template <int WIDTH, int P, typename A>
struct Held {
  Vec<A> of[WIDTH][P];
  Held(Work<A>&, int) {}
};
template <int P, typename A>
struct Held<0, P, A> {
  Vec<A> (*of)[P];
  Held(Work<A>& work, int which) : of(reinterpret_cast<Vec<A> (*)[P]>(work.held[which])) {}
};

// How many tokens fill whole vectors, or are better padded to them than taken one by one.
template <typename A>
int64_t in_vectors(int64_t tokens) {
  constexpr int64_t W = Vec<A>::size();
  const int64_t rest = tokens % W, alone = 14 * (tokens / W + 1) + 100;  // about the operations of a token by itself
  return rest * alone < 14 * tokens ? tokens - rest : padded<A>(tokens);
}

template <typename A>
A top_of(Vec<A> x) {
  return at::vec::vec_reduce_all<A>([](const Vec<A>& a, const Vec<A>& b) { return at::vec::maximum(a, b); }, x);
}

// total[r][p] += Σ_e lanes[e][p] · rows[e][i + r] for R tokens and P vectors.
template <int R, int P, typename A>
inline void dot(Vec<A> (&total)[R][P], const Vec<A> (*lanes)[P], const Row<A>& rows, int64_t i, int64_t width) {
  for (int64_t e = 0; e < width; ++e)
    for (int r = 0; r < R; ++r) {
      const Vec<A> one(rows[e][i + r]);
      for (int p = 0; p < P; ++p) total[r][p] = fmadd(lanes[e][p], one, total[r][p]);
    }
}

// sums[e][p] += Σ_r weights[r][p] · rows[e][i + r] for R tokens and P vectors.
template <int R, int P, typename A>
inline void add(Vec<A> (*sums)[P], const Vec<A> (&weights)[R][P], const Row<A>& rows, int64_t i, int64_t width) {
  for (int64_t e = 0; e < width; ++e) {
    Vec<A> total[P];
    for (int p = 0; p < P; ++p) total[p] = sums[e][p];
    for (int r = 0; r < R; ++r) {
      const Vec<A> one(rows[e][i + r]);
      for (int p = 0; p < P; ++p) total[p] = fmadd(weights[r][p], one, total[p]);
    }
    for (int p = 0; p < P; ++p) sums[e][p] = total[p];
  }
}

template <int R, int P, typename A>
inline void fill(Vec<A> (&all)[R][P], Vec<A> with) {
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) all[r][p] = with;
}

// WIDTH below is the width of the head if it is known when this is compiled, else 0.
template <typename A>
struct Forward {
  Row<A> q, k, v, out;
  A* lse;  // log Σ exp of the scores of each query, in units of log 2

  // P vectors of queries, scaled to units of log 2, and what they gather over the keys.
  template <int WIDTH, int P>
  struct Gathered {
    Held<WIDTH, P, A> query, total;
    Vec<A> all[P], top[P];
    explicit Gathered(Work<A>& work) : query(work, 0), total(work, 1) {}
  };

  template <int R, int P, typename Sums>
  void score_and_weigh(Sums& sums, int64_t j, int64_t width) const {
    Vec<A> weight[R][P];
    fill(weight, Vec<A>(0));
    dot(weight, sums.query.of, k, j, width);
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) {
        weight[r][p] = bounded_exp2(weight[r][p]);
        sums.all[p] = sums.all[p] + weight[r][p];
      }
    add(sums.total.of, weight, v, j, width);
  }

  template <int R, int P, typename Sums>
  void score(Sums& sums, Rows<A>& scores, int64_t j, int64_t width) const {
    Vec<A> score[R][P];
    fill(score, Vec<A>(0));
    dot(score, sums.query.of, k, j, width);
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) {
        score[r][p].store(scores[(j + r) * P + p]);
        sums.top[p] = clamp_min(score[r][p], sums.top[p]);
      }
  }

  template <int R, int P, typename Sums>
  void weigh(Sums& sums, Rows<A>& scores, int64_t j, int64_t width) const {
    Vec<A> weight[R][P];
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) {
        weight[r][p] = exp2(Vec<A>::loadu(scores[(j + r) * P + p]) - sums.top[p]);
        sums.all[p] = sums.all[p] + weight[r][p];
      }
    add(sums.total.of, weight, v, j, width);
  }

  // P vectors of queries from i on.
  template <int WIDTH, int P>
  [[gnu::noinline]] void queries(const Head& s, Work<A>& work, Vec<A> largest_key, int64_t i) const {
    constexpr int64_t W = Vec<A>::size(), R = TOGETHER<A>;
    const int64_t width = WIDTH ? WIDTH : s.width, whole = s.tokens / R * R;
    Gathered<WIDTH, P> sums(work);
    Vec<A> size(0);
    for (int p = 0; p < P; ++p) {
      Vec<A> most(0);
      for (int64_t e = 0; e < width; ++e) {
        sums.query.of[e][p] = Vec<A>::loadu(q[e] + i + p * W) * Vec<A>(static_cast<A>(s.scale * LOG2E));
        sums.total.of[e][p] = Vec<A>(0);
        most = fmadd(sums.query.of[e][p].abs(), largest_key, most);
      }
      size = at::vec::maximum(size, most);
      sums.all[p] = sums.top[p] = Vec<A>(0);
    }
    if (top_of(size) < static_cast<A>(BOUND)) {  // not if it is NaN
      for (int64_t j = 0; j < whole; j += R) score_and_weigh<R, P>(sums, j, width);
      for (int64_t j = whole; j < s.tokens; ++j) score_and_weigh<1, P>(sums, j, width);
    } else {
      for (int p = 0; p < P; ++p) sums.top[p] = Vec<A>(-std::numeric_limits<A>::infinity());
      for (int64_t j = 0; j < whole; j += R) score<R, P>(sums, work.scores, j, width);
      for (int64_t j = whole; j < s.tokens; ++j) score<1, P>(sums, work.scores, j, width);
      for (int64_t j = 0; j < whole; j += R) weigh<R, P>(sums, work.scores, j, width);
      for (int64_t j = whole; j < s.tokens; ++j) weigh<1, P>(sums, work.scores, j, width);
    }
    for (int p = 0; p < P; ++p) {
      for (int64_t e = 0; e < width; ++e) (sums.total.of[e][p] / sums.all[p]).store(out[e] + i + p * W);
      (sums.top[p] + sums.all[p].log2()).store(lse + i + p * W);
    }
  }

  void one_query(const Head& s, Work<A>& work, int64_t i) const {
    constexpr int64_t W = Vec<A>::size();
    const A infinity = std::numeric_limits<A>::infinity();
    Vec<A> top(-infinity), all(0);
    for (int64_t j = 0; j < s.tokens; j += W) {
      Vec<A> score(0);
      for (int64_t e = 0; e < s.width; ++e)
        score = fmadd(Vec<A>(q[e][i] * static_cast<A>(s.scale * LOG2E)), Vec<A>::loadu(k[e] + j), score);
      if (s.tokens - j < W) score = Vec<A>::set(Vec<A>(-infinity), score, s.tokens - j);
      score.store(work.scores[j / W]);
      top = at::vec::maximum(top, score);
    }
    const A most = top_of(top);
    for (int64_t j = 0; j < s.tokens; j += W) {
      Vec<A> weight = exp2(Vec<A>::loadu(work.scores[j / W]) - Vec<A>(most));
      if (s.tokens - j < W) weight = Vec<A>::set(Vec<A>(0), weight, s.tokens - j);
      weight.store(work.scores[j / W]);
      all = all + weight;
    }
    const A total = sum(all);
    for (int64_t e = 0; e < s.width; ++e) {
      Vec<A> value(0);
      for (int64_t j = 0; j < s.tokens; j += W)
        value = fmadd(Vec<A>::loadu(work.scores[j / W]), Vec<A>::loadu(v[e] + j, std::min(W, s.tokens - j)), value);
      out[e][i] = sum(value) / total;
    }
    lse[i] = most + std::log2(total);
  }

  // The queries from `first`, which begins a vector, to `last`.
  template <int WIDTH>
  void run(const Head& s, Work<A>& work, int64_t first, int64_t last) const {
    constexpr int64_t W = Vec<A>::size();
    Vec<A> largest(0);
    for (int64_t e = 0; e < s.width; ++e)
      for (int64_t j = 0; j < s.tokens; j += W)
        largest = at::vec::maximum(largest, Vec<A>::loadu(k[e] + j, std::min(W, s.tokens - j)).abs());
    const int64_t whole = std::min(in_vectors<A>(s.tokens), last);
    int64_t i = first;
    for (; i + (ABREAST - 1) * W < whole; i += ABREAST * W)
      queries<WIDTH, ABREAST>(s, work, Vec<A>(top_of(largest)), i);
    for (; i < whole; i += W) queries<WIDTH, 1>(s, work, Vec<A>(top_of(largest)), i);
    for (; i < last; ++i) one_query(s, work, i);
  }
};

template <typename A>
struct Backward {
  Row<A> q, k, v, grad, d_q, d_k, d_v;
  // q is scaled as forward's, so that scores are the same to the last bit; mean_i = Σ_j P_ij dP_ij = Σ_e dO_ie O_ie
  const A *lse, *mean;  // mean is negative

  // The keys of P vectors against R queries from i on, whose gradients of scores go to the tiles from row r on.
  template <int R, int P>
  void step(const Vec<A> (*key)[P], const Vec<A> (*value)[P], Vec<A> (*d_key)[P], Vec<A> (*d_value)[P], Rows<A>& tiles,
            int64_t i, int64_t r, int64_t width) const {
    Vec<A> weight[R][P], d_score[R][P];
    fill(weight, Vec<A>(0));
    dot(weight, key, q, i, width);
    for (int n = 0; n < R; ++n)
      for (int p = 0; p < P; ++p) {
        weight[n][p] = exp2(weight[n][p] - Vec<A>(lse[i + n]));
        d_score[n][p] = Vec<A>(mean[i + n]);
      }
    add(d_value, weight, grad, i, width);
    dot(d_score, value, grad, i, width);
    for (int n = 0; n < R; ++n)
      for (int p = 0; p < P; ++p) {
        d_score[n][p] = weight[n][p] * d_score[n][p];
        d_score[n][p].store(tiles[p * Vec<A>::size() + r + n]);
      }
    add(d_key, d_score, q, i, width);
  }

  // d_q += (the tile of gradients of scores, transposed) · k, for the queries of one vector and the keys of one.
  void add_to_queries(A* tile, Work<A>& work, int64_t i, int64_t j, int64_t live, int64_t width) const {
    constexpr int64_t W = Vec<A>::size();
    Vec<A> d_score[W];
#ifdef CPU_CAPABILITY_AVX512
    if constexpr (std::is_same_v<A, float>) {
      for (int64_t n = 0; n < W; n += 4) four_columns(tile + n, W, d_score + n);
    } else
#endif
    {
      at::vec::transpose_mxn<A>(tile, W, work.tile_t[0], W, W, W);
      for (int64_t n = 0; n < W; ++n) d_score[n] = Vec<A>::loadu(work.tile_t[n]);
    }
    for (int64_t n = live; n < W; ++n) d_score[n] = Vec<A>(0);
    for (int64_t e = 0; e < width; ++e) {
      const A* keys = k[e] + j;
      Vec<A> total = Vec<A>::loadu(d_q[e] + i), other(0);
      for (int64_t n = 0; n < W; n += 2) {
        total = fmadd(d_score[n], Vec<A>(keys[n]), total);
        other = fmadd(d_score[n + 1], Vec<A>(keys[n + 1]), other);
      }
      (total + other).store(d_q[e] + i);
    }
  }

  // P vectors of keys from j on.
  template <int WIDTH, int P>
  [[gnu::noinline]] void keys(const Head& s, Work<A>& work, int64_t j) const {
    // A narrow head has so few sums that those of half as many tokens fit into the registers beside them.
    constexpr int64_t W = Vec<A>::size(), R = WIDTH && WIDTH < 8 ? TOGETHER<A> / 2 : TOGETHER<A>;
    const int64_t width = WIDTH ? WIDTH : s.width;
    Held<WIDTH, P, A> key(work, 0), value(work, 1), d_key(work, 2), d_value(work, 3);
    for (int64_t e = 0; e < width; ++e)
      for (int p = 0; p < P; ++p) {
        key.of[e][p] = Vec<A>::loadu(k[e] + j + p * W);
        value.of[e][p] = Vec<A>::loadu(v[e] + j + p * W);
        d_key.of[e][p] = d_value.of[e][p] = Vec<A>(0);
      }
    for (int64_t i = 0; i < s.tokens; i += W) {
      const int64_t count = std::min(W, s.tokens - i);
      int64_t r = 0;
      for (; r + R <= count; r += R) step<R, P>(key.of, value.of, d_key.of, d_value.of, work.tiles, i + r, r, width);
      for (; r < count; ++r) step<1, P>(key.of, value.of, d_key.of, d_value.of, work.tiles, i + r, r, width);
      for (int p = 0; p < P; ++p)
        add_to_queries(work.tiles[p * W], work, i, j + p * W, std::min(W, s.tokens - j - p * W), width);
    }
    for (int64_t e = 0; e < width; ++e)
      for (int p = 0; p < P; ++p) {
        (d_key.of[e][p] * Vec<A>(static_cast<A>(LN2))).store(d_k[e] + j + p * W);
        d_value.of[e][p].store(d_v[e] + j + p * W);
      }
  }

  void one_key(const Head& s, Work<A>& work, int64_t j) const {
    constexpr int64_t W = Vec<A>::size();
    A *d_key = work.held[0], *d_value = work.held[1];  // a vector for each number of the head
    std::fill_n(d_key, s.width * W, A(0));
    std::fill_n(d_value, s.width * W, A(0));
    for (int64_t i = 0; i < s.tokens; i += W) {
      const int64_t count = std::min(W, s.tokens - i);
      Vec<A> weight(0), d_score = Vec<A>::loadu(mean + i);
      for (int64_t e = 0; e < s.width; ++e) {
        weight = fmadd(Vec<A>(k[e][j]), Vec<A>::loadu(q[e] + i), weight);
        d_score = fmadd(Vec<A>(v[e][j]), Vec<A>::loadu(grad[e] + i), d_score);
      }
      weight = exp2(weight - Vec<A>::loadu(lse + i));
      d_score = Vec<A>::set(Vec<A>(0), weight * d_score, count);
      weight = Vec<A>::set(Vec<A>(0), weight, count);
      for (int64_t e = 0; e < s.width; ++e) {
        fmadd(d_score, Vec<A>::loadu(q[e] + i, count), Vec<A>::loadu(d_key + e * W)).store(d_key + e * W);
        fmadd(weight, Vec<A>::loadu(grad[e] + i, count), Vec<A>::loadu(d_value + e * W)).store(d_value + e * W);
        fmadd(d_score, Vec<A>(k[e][j]), Vec<A>::loadu(d_q[e] + i)).store(d_q[e] + i);
      }
    }
    for (int64_t e = 0; e < s.width; ++e) {
      d_k[e][j] = sum(Vec<A>::loadu(d_key + e * W)) * static_cast<A>(LN2);
      d_v[e][j] = sum(Vec<A>::loadu(d_value + e * W));
    }
  }

  template <int WIDTH>
  void run(const Head& s, Work<A>& work) const {
    const int64_t whole = std::min(in_vectors<A>(s.tokens), padded<A>(s.tokens));
    for (int64_t e = 0; e < s.width; ++e) std::fill_n(d_q[e], padded<A>(s.tokens), A(0));
    constexpr int64_t W = Vec<A>::size();
    int64_t j = 0;
    for (; j + (ABREAST - 1) * W < whole; j += ABREAST * W) keys<WIDTH, ABREAST>(s, work, j);
    for (; j < whole; j += W) keys<WIDTH, 1>(s, work, j);
    for (; j < s.tokens; ++j) one_key(s, work, j);
    for (int64_t e = 0; e < s.width; ++e)
      for (int64_t i = 0; i < s.tokens; ++i) d_q[e][i] *= static_cast<A>(s.scale);
  }
};

// What Backward reads beside its rows: -mean, lse, and the queries as forward scaled them.
template <typename A>
void prepare(const Head& s, const Row<A>& q, const Row<A>& grad, const Row<A>& out, const A* lse, A* mean, A* log) {
  std::copy_n(lse, s.tokens, log);
  std::fill_n(mean, s.tokens, A(0));
  for (int64_t e = 0; e < s.width; ++e)
    for (int64_t i = 0; i < s.tokens; ++i) {
      mean[i] -= grad[e][i] * out[e][i];
      q[e][i] *= static_cast<A>(s.scale * LOG2E);
    }
}

template <template <typename> class Pass, typename A, typename... Range>
void run(const Pass<A>& pass, const Head& s, Work<A>& work, Range... range) {
  if constexpr (std::is_same_v<A, float>) switch (s.width) {
      case 1: return pass.template run<1>(s, work, range...);
      case 4: return pass.template run<4>(s, work, range...);
      case 5: return pass.template run<5>(s, work, range...);
      case 8: return pass.template run<8>(s, work, range...);
      case 12: return pass.template run<12>(s, work, range...);
      case 16: return pass.template run<16>(s, work, range...);
    }
  pass.template run<0>(s, work, range...);
}

}  // namespace
