// Layers on tokens that lie in the lanes of vectors: number e of token t is rows[e][t].
//
// A slice is narrow (16 to 64 numbers) and has many tokens. With the tokens in the lanes a norm adds no lanes up, and the
// weights are read one by one from where they are: nothing is packed or padded, whatever the width.
#pragma once
#include "vectors.h"

namespace {

// A block of a product is BLOCK rows by at most MOST vectors: its sums, with what they read, fill the registers.
constexpr int BLOCK = 6;
#ifdef CPU_CAPABILITY_AVX512
constexpr int MOST = 4;
#else
constexpr int MOST = 2;
#endif

// out[m][n] = start[m] or out[m][n] + Σ_k w[m·wm + k·wk] · in[k][n] for M rows and N vectors. Unrolled from the beginning,
// or the sums would go through the memory before and after the loop.
template <int M, int N, bool ADD, typename A>
[[gnu::noinline]] void block(const A* w, int64_t wm, int64_t wk, const A* start, const A* in, int64_t in_step, A* out,
                             int64_t out_step, int64_t depth) {
  constexpr int64_t W = Vec<A>::size();
  Vec<A> total[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    const Vec<A> first(start ? start[m] : A(0));
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) total[m][n] = ADD ? Vec<A>::loadu(out + m * out_step + n * W) : first;
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vec<A> column[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) column[n] = Vec<A>::loadu(in + k * in_step + n * W);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Vec<A> weight(w[m * wm + k * wk]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) total[m][n] = fmadd(weight, column[n], total[m][n]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) total[m][n].store(out + m * out_step + n * W);
}

// A matrix in memory: number (m, k) is at m·down + k·across.
template <typename A>
struct View {
  const A* data;
  int64_t down, across;
  View transposed() const { return {data, across, down}; }
};

// The rows from m on, M at a time; a block of its own takes what is left over.
template <int M, int N, bool ADD, typename A>
void column_of_blocks(View<A> w, const A* start, const A* in, int64_t in_step, A* out, int64_t out_step, int64_t rows,
                      int64_t depth, int64_t m = 0) {
  for (; m + M <= rows; m += M)
    block<M, N, ADD>(w.data + m * w.down, w.down, w.across, start ? start + m : start, in, in_step, out + m * out_step,
                     out_step, depth);
  if constexpr (M > 1)
    if (m < rows) column_of_blocks<M - 1, N, ADD>(w, start, in, in_step, out, out_step, rows, depth, m);
}

// out (rows, lanes) = start + w (rows, depth) · in (depth, lanes), or += if ADD; `lanes` are whole vectors.
template <bool ADD = false, typename A>
void product(View<A> w, const A* start, const A* in, int64_t in_step, A* out, int64_t out_step, int64_t rows,
             int64_t depth, int64_t lanes) {
  constexpr int64_t W = Vec<A>::size();
  int64_t n = 0;
  for (; n + MOST * W <= lanes; n += MOST * W)
    column_of_blocks<BLOCK, MOST, ADD>(w, start, in + n, in_step, out + n, out_step, rows, depth);
  for (; MOST > 2 && n + 2 * W <= lanes; n += 2 * W)
    column_of_blocks<BLOCK, 2, ADD>(w, start, in + n, in_step, out + n, out_step, rows, depth);
  for (; n < lanes; n += W)
    column_of_blocks<2 * BLOCK, 1, ADD>(w, start, in + n, in_step, out + n, out_step, rows, depth);
}

// Some rows of working memory.
template <typename A>
struct Lanes {
  A* data;
  int64_t step;
  A* operator[](int64_t e) const { return data + e * step; }
};

template <typename A>
Lanes<A> from(Rows<A>& rows, int64_t first) {
  return {rows[first], rows.step};
}

// Weights in the precision that is computed in: where they are, or copied.
template <typename T, typename A>
const A* widened(const T* from, int64_t count, Rows<A>& copy) {
  if constexpr (std::is_same_v<T, A>) return from;
  if (!from) return nullptr;
  if (copy.count < count) copy = Rows<A>(count, 1);
  for (int64_t i = 0; i < count; ++i) copy.begin()[i] = static_cast<A>(from[i]);
  return copy.begin();
}

// Tokens (count, width), one after the other in memory -> rows over tokens.
template <typename T, typename A>
void to_lanes(const T* tokens, Lanes<A> rows, int64_t count, int64_t width) {
  if constexpr (std::is_same_v<T, A>) {
    transpose(tokens, width, rows[0], rows.step, count, width);
  } else {
    for (int64_t t = 0; t < count; ++t)
      for (int64_t e = 0; e < width; ++e) rows[e][t] = static_cast<A>(tokens[t * width + e]);
  }
}

// The other way round, and `residual` (tokens as well) is added.
template <typename T, typename A>
void add_from_lanes(Lanes<A> rows, Rows<A>& tokens, const T* residual, T* out, int64_t count, int64_t width) {
  transpose(rows[0], rows.step, tokens[0], tokens.step, width, count);
  for (int64_t t = 0; t < count; ++t)
    for (int64_t e = 0; e < width; ++e)
      out[t * width + e] = static_cast<T>(static_cast<A>(residual[t * width + e]) + tokens[t][e]);
}

// normed = (x - mean) · rstd for each token, y = γ · normed + β. May be in place: normed = x.
template <typename A>
void norm(Lanes<A> x, Lanes<A> normed, Lanes<A> y, A* rstd, const A* gamma, const A* beta, double eps, int64_t width,
          int64_t lanes) {
  const Vec<A> share(A(1) / width);
  for (int64_t n = 0; n < lanes; n += Vec<A>::size()) {
    Vec<A> mean(0), square(0);
    for (int64_t e = 0; e < width; ++e) mean = mean + Vec<A>::loadu(x[e] + n);
    mean = mean * share;
    for (int64_t e = 0; e < width; ++e) {
      const Vec<A> centred = Vec<A>::loadu(x[e] + n) - mean;
      square = fmadd(centred, centred, square);
    }
    const Vec<A> scale = Vec<A>(1) / fmadd(square, share, Vec<A>(static_cast<A>(eps))).sqrt();
    if (rstd) scale.store(rstd + n);
    for (int64_t e = 0; e < width; ++e) {
      const Vec<A> one = (Vec<A>::loadu(x[e] + n) - mean) * scale;
      one.store(normed[e] + n);
      fmadd(one, Vec<A>(gamma[e]), Vec<A>(beta[e])).store(y[e] + n);
    }
  }
}

// The gradient of x from that of y, in its place; what it adds to those of γ and β. Tokens beyond the last have none.
template <typename A>
void norm_backward(Lanes<A> grad, Lanes<A> normed, const A* rstd, const A* gamma, A* d_gamma, A* d_beta,
                   int64_t width, int64_t lanes) {
  for (int64_t e = 0; e < width; ++e) {
    Vec<A> along(0), plain(0);
    for (int64_t n = 0; n < lanes; n += Vec<A>::size()) {
      const Vec<A> g = Vec<A>::loadu(grad[e] + n);
      along = fmadd(g, Vec<A>::loadu(normed[e] + n), along);
      plain = plain + g;
    }
    d_gamma[e] += sum(along);
    d_beta[e] += sum(plain);
  }
  const Vec<A> share(A(1) / width);
  for (int64_t n = 0; n < lanes; n += Vec<A>::size()) {
    Vec<A> plain(0), along(0);  // Σ gγ and Σ gγ·x̂
    for (int64_t e = 0; e < width; ++e) {
      const Vec<A> pull = Vec<A>::loadu(grad[e] + n) * Vec<A>(gamma[e]);
      plain = plain + pull;
      along = fmadd(pull, Vec<A>::loadu(normed[e] + n), along);
    }
    plain = plain * share;
    along = along * share;
    const Vec<A> scale = Vec<A>::loadu(rstd + n);
    for (int64_t e = 0; e < width; ++e) {
      const Vec<A> pull = Vec<A>::loadu(grad[e] + n) * Vec<A>(gamma[e]);
      ((pull - plain - Vec<A>::loadu(normed[e] + n) * along) * scale).store(grad[e] + n);
    }
  }
}

template <typename A>
void add_sums(Lanes<A> rows, A* sums, int64_t count, int64_t lanes) {  // sums[m] += Σ_n rows[m][n]
  for (int64_t m = 0; m < count; ++m) {
    Vec<A> total(0);
    for (int64_t n = 0; n < lanes; n += Vec<A>::size()) total = total + Vec<A>::loadu(rows[m] + n);
    sums[m] += sum(total);
  }
}

// Slices mixed by a matrix (parts, parts): all rows of slice k are Σ_l matrix[k][l] · those of slice l, of as many rows each.
template <typename A>
void mix(View<A> matrix, Rows<A>& in, Rows<A>& out, int64_t parts) {
  const int64_t slice = in.count / parts * in.step;
  product(matrix, static_cast<const A*>(nullptr), in[0], slice, out[0], slice, parts, parts, slice);
}

// gains[m][n] += the product of slice k + m of `grad` and slice l + n of `in`, number by number, for M × N of them.
template <int M, int N, typename A>
void add_gains_of(Rows<A>& grad, Rows<A>& in, A* gains, int64_t k, int64_t l, int64_t parts, int64_t lanes) {
  const int64_t rows = in.count / parts;
  Vec<A> total[M][N];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) total[m][n] = Vec<A>(A(0));
  for (int64_t e = 0; e < rows; ++e)
    for (int64_t i = 0; i < lanes; i += Vec<A>::size()) {
      Vec<A> one[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) one[n] = Vec<A>::loadu(in[(l + n) * rows + e] + i);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const Vec<A> g = Vec<A>::loadu(grad[(k + m) * rows + e] + i);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) total[m][n] = fmadd(g, one[n], total[m][n]);
      }
    }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) gains[(k + m) * parts + l + n] += sum(total[m][n]);
}

// What the matrix gains from the gradients of what it gave.
template <typename A>
void add_mix_gains(Rows<A>& grad, Rows<A>& in, A* gains, int64_t parts, int64_t lanes) {
  const int64_t whole = parts / 4 * 4;
  for (int64_t k = 0; k < whole; k += 4)
    for (int64_t l = 0; l < whole; l += 4) add_gains_of<4, 4>(grad, in, gains, k, l, parts, lanes);
  for (int64_t k = 0; k < parts; ++k)
    for (int64_t l = k < whole ? whole : 0; l < parts; ++l) add_gains_of<1, 1>(grad, in, gains, k, l, parts, lanes);
}

// The units of work from `first` to `last` that fall to a thread: as many to each, neighbours together.
inline int64_t dealt(int64_t units, int64_t thread, int64_t threads) { return units * thread / threads; }

// The sums of what the parameters of a group of slices gain, while a thread goes through its units of work. A group that
// it has for itself is done with its last unit. Of one that threads share, the sums of each stay here until all are done,
// and are added in the order of the threads: the result does not depend on which was first.
template <typename A>
struct Sums {
  int64_t size;
  std::vector<Rows<A>> alone, first, last;  // of each thread: a group of its own, and those that it shares
  std::vector<int64_t> first_group, last_group;

  Sums(int64_t threads, int64_t size)
      : size(size), alone(threads), first(threads), last(threads), first_group(threads, -1), last_group(threads, -1) {}

  // Zeros for a group, which the thread begins, ends, or both.
  A* of(int64_t thread, int64_t group, bool begins, bool ends) {
    if (!begins) first_group[thread] = group;
    if (begins && !ends) last_group[thread] = group;
    Rows<A>& rows = !begins ? first[thread] : ends ? alone[thread] : last[thread];
    if (rows.count) rows.fill(A(0));
    else rows = Rows<A>(1, size);
    return rows[0];
  }

  template <typename HandOver>
  void hand_over_shared(HandOver hand_over) {
    for (size_t thread = 0; thread < last.size(); ++thread) {
      if (last_group[thread] < 0) continue;
      A* sum = last[thread][0];
      for (size_t next = thread + 1; next < last.size(); ++next) {
        if (first_group[next] != last_group[thread]) continue;  // a thread between them may have had no work
        for (int64_t i = 0; i < size; ++i) sum[i] += first[next][0][i];
      }
      hand_over(last_group[thread], sum);
    }
  }
};

// Sums in the precision of a parameter, or nothing if there is none.
template <typename T, typename A>
void narrowed(const A* from, T* to, int64_t count) {
  for (int64_t i = 0; to && i < count; ++i) to[i] = static_cast<T>(from[i]);
}

// A matrix of sums, (rows, columns) with rows of whole lines, as it is or transposed.
template <typename T, typename A>
void narrowed(const A* from, T* to, int64_t rows, int64_t columns, bool transposed) {
  if constexpr (std::is_same_v<T, A>)
    if (transposed) return transpose(from, lined(columns), to, rows, rows, columns);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      to[transposed ? j * rows + i : i * columns + j] = static_cast<T>(from[i * lined(columns) + j]);
}

}  // namespace
