// Attention with small heads, forward and backward, straight from the packed qkv and into the merged output.
//
// torch's kernels want each head in one piece; those of joint attention lie in C pieces. Here one (group, head) is a unit
// of work, copied into the cache first; heads.h has the rest.
//
// qkv  [group][part] (N, 3, H, D)     a head is made of `parts` pieces of D numbers: 1 for slice attention, C for joint
// out  [group][part] (N, H, D)
// lse  (groups, H, N)                 log Σ exp of each row of scores in units of log 2, for backward
#include "heads.h"

namespace {

struct Shape {
  int64_t groups, parts, tokens, heads, size;  // a head has parts · size numbers
  int64_t group_step, part_step;               // in tokens: how far apart groups and parts lie
  double scale;

  Head head() const { return {tokens, parts * size, scale}; }
  int64_t row() const { return heads * size; }
  // where (group, part, token) starts, for `many` rows of H·D numbers a token (3 in qkv, 1 in out)
  int64_t at(int64_t group, int64_t part, int64_t token, int64_t many) const {
    return (group * group_step + part * part_step + token) * many * row();
  }
};

template <typename A>
struct Pieces {  // of a packed tensor, by rows over tokens
  Rows<A> rows;
  std::vector<A*> table;
  explicit Pieces(const Head& head) : rows(head.width, padded<A>(head.tokens)), table(head.width) {
    for (int64_t e = 0; e < head.width; ++e) table[e] = rows[e];
  }
  operator Row<A>() { return {table.data()}; }

  // which: 0 queries, 1 keys, 2 values of a packed tensor that has `many` such rows a token.
  template <typename T>
  void pack(const T* packed, const Shape& s, int64_t g, int64_t h, int64_t which, int64_t many) {
    for (int64_t p = 0; p < s.parts; ++p) {
      const T* from = packed + s.at(g, p, 0, many) + which * s.row() + h * s.size;
      if constexpr (std::is_same_v<T, A>) {
        transpose(from, many * s.row(), rows[p * s.size], rows.step, s.tokens, s.size);
        continue;
      }
      for (int64_t t = 0; t < s.tokens; ++t)
        for (int64_t e = 0; e < s.size; ++e) rows[p * s.size + e][t] = static_cast<A>(from[t * many * s.row() + e]);
    }
  }

  template <typename T>
  void unpack(T* packed, const Shape& s, int64_t g, int64_t h, int64_t which, int64_t many) {
    for (int64_t p = 0; p < s.parts; ++p) {
      T* to = packed + s.at(g, p, 0, many) + which * s.row() + h * s.size;
      for (int64_t t = 0; t < s.tokens; ++t)
        for (int64_t e = 0; e < s.size; ++e) to[t * many * s.row() + e] = static_cast<T>(rows[p * s.size + e][t]);
    }
  }
};

template <typename T, typename A>
void forward(const T* qkv, T* out, A* lse, const Shape& s, int threads) {
  const Head head = s.head();
#pragma omp parallel num_threads(threads)
  {
    Work<A> work(head);
    Pieces<A> q(head), k(head), v(head), o(head);
    Rows<A> lse_row(1, padded<A>(s.tokens));
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.groups * s.heads; ++unit) {
      const int64_t g = unit / s.heads, h = unit % s.heads;
      q.pack(qkv, s, g, h, 0, 3);
      k.pack(qkv, s, g, h, 1, 3);
      v.pack(qkv, s, g, h, 2, 3);
      run(Forward<A>{q, k, v, o, lse_row[0]}, head, work, int64_t{0}, s.tokens);
      std::copy_n(lse_row[0], s.tokens, lse + unit * s.tokens);
      o.unpack(out, s, g, h, 0, 1);
    }
  }
}

template <typename T, typename A>
void backward(const T* grad_out, const T* qkv, const T* out, const A* lse, T* grad_qkv, const Shape& s, int threads) {
  const Head head = s.head();
#pragma omp parallel num_threads(threads)
  {
    Work<A> work(head);
    Pieces<A> q(head), k(head), v(head), o(head), grad(head), d_q(head), d_k(head), d_v(head);
    Rows<A> means(1, padded<A>(s.tokens)), logs(1, padded<A>(s.tokens));
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < s.groups * s.heads; ++unit) {
      const int64_t g = unit / s.heads, h = unit % s.heads;
      q.pack(qkv, s, g, h, 0, 3);
      k.pack(qkv, s, g, h, 1, 3);
      v.pack(qkv, s, g, h, 2, 3);
      o.pack(out, s, g, h, 0, 1);
      grad.pack(grad_out, s, g, h, 0, 1);
      prepare<A>(head, q, grad, o, lse + unit * s.tokens, means[0], logs[0]);
      run(Backward<A>{q, k, v, grad, d_q, d_k, d_v, logs[0], means[0]}, head, work);
      d_q.unpack(grad_qkv, s, g, h, 0, 3);
      d_k.unpack(grad_qkv, s, g, h, 1, 3);
      d_v.unpack(grad_qkv, s, g, h, 2, 3);
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
