// The attention half of a block, x + proj(attention(norm(x))), forward and backward, on images that stay in the cache.
//
// The images of a bundle lie side by side in the lanes, so that few lanes are empty. What forward keeps is the attended
// values and log Σ exp of the scores; backward computes norm and qkv again. Slices go one by one, or, if they are coupled,
// all together: by joint attention, by a norm over all of them, by a shuffle before proj, which in lanes is no more
// than the place where a row is written, or by a matrix that mixes them before qkv and one before proj. With a pool of p
// attention is between the means of p × p tokens.
//
// x, y (C, B, N, d)   γ, β (C, d)   wqkv (C, d, 3·d)   bqkv (C, 3·d) or null   wproj (C, d, d)   bproj (C, d)
// mix1, mix2 (C, C), or null
// kept (C, B, d, n)   lse (C or 1, B, H, n) in units of log 2: null if there is no backward; n = N / p²
// `dense`: weights as those of nn.Linear, (3·d, d) and (d, d). Joint attention takes all slices of an image together.
#include <omp.h>

#include "heads.h"
#include "lanes.h"

namespace {

struct Shape {
  int64_t slices, images, tokens, width, heads, joint, dense;
  int64_t bundle, cuts;  // images that are a unit of work; or into how many the queries of one image are cut
  int64_t parts;         // slices that are a unit of work
  int64_t norm_joint, shuffle, pool, across, mixes;
  double eps;

  int64_t groups() const { return slices / parts; }
  int64_t bundles() const { return (images + bundle - 1) / bundle; }
  int64_t units() const { return groups() * bundles() * cuts; }
  int64_t features() const { return parts * width; }
  int64_t norms() const { return norm_joint ? 1 : parts; }
  int64_t attended() const { return tokens / (pool * pool); }  // tokens of an image that attend
  int64_t size() const { return width / heads; }
  int64_t maps() const { return joint ? 1 : parts; }  // softmax maps of a head
  int64_t lanes() const { return lined(bundle * tokens) + LINE; }
  int64_t few_lanes() const { return lined(bundle * attended()) + LINE; }
  Head head() const {
    const int64_t numbers = parts / maps() * size();
    return {attended(), numbers, 1 / std::sqrt(static_cast<double>(numbers))};
  }
  // Where feature m of all slices end to end is for proj.
  int64_t place(int64_t m) const { return shuffle ? m % width * parts + m / width : m; }
  // Which of the attended tokens of a bundle stands for token t of it.
  int64_t pooled(int64_t t) const {
    if (pool == 1) return t;
    const int64_t y = t % tokens / across, x = t % across;
    return t / tokens * attended() + y / pool * (across / pool) + x / pool;
  }
};

template <typename T>
struct Parameters {  // of a group of slices, or their gradients
  T *gamma, *beta, *wqkv, *bqkv, *wproj, *bproj, *mix1, *mix2;
  Parameters of(int64_t group, const Shape& s) const {
    const int64_t d = s.width, at = group * s.features();
    return {gamma + at, beta + at, wqkv + 3 * at * d, bqkv ? bqkv + 3 * at : bqkv, wproj + at * d, bproj + at,
            mix1, mix2};
  }
};

// A unit of work: which images of which group, and which of their tokens are asked for.
struct Unit {
  int64_t group, image, images, first, last;
  Unit(int64_t unit, const Shape& s) {
    const int64_t cut = unit % s.cuts, vectors = (s.attended() + LINE - 1) / LINE;
    group = unit / s.cuts / s.bundles();
    image = unit / s.cuts % s.bundles() * s.bundle;
    images = std::min(s.bundle, s.images - image);
    first = vectors * cut / s.cuts * LINE;
    last = std::min(vectors * (cut + 1) / s.cuts * LINE, s.attended());
  }
};

// The tokens of a bundle in the slices of a group, and their parameters.
template <typename A>
struct Group {
  Rows<A> x, normed, y, means, mixed, qkv, out, mixed_out, tokens, rstd, copies[8];
  std::vector<int64_t> pooled;  // of each token
  Parameters<const A> of;

  explicit Group(const Shape& s) : pooled(s.bundle * s.tokens) {
    for (Rows<A>* rows : {&x, &normed, &y}) *rows = Rows<A>(s.features(), s.lanes());
    if (s.pool > 1) means = Rows<A>(s.features(), s.few_lanes());
    if (s.mixes) mixed = Rows<A>(s.features(), attending(s).step), mixed_out = Rows<A>(s.features(), s.few_lanes());
    out = Rows<A>(s.features(), s.few_lanes()), qkv = Rows<A>(3 * s.features(), s.few_lanes());
    tokens = Rows<A>(s.lanes(), lined(s.width)), rstd = Rows<A>(s.norms(), s.lanes());
    for (size_t t = 0; t < pooled.size(); ++t) pooled[t] = s.pooled(t);
  }

  template <typename T>
  void take(const Parameters<const T>& p, const Shape& s) {
    const int64_t d = s.features();
    of = {widened(p.gamma, d, copies[0]),             widened(p.beta, d, copies[1]),
          widened(p.wqkv, 3 * d * s.width, copies[2]), widened(p.bqkv, 3 * d, copies[3]),
          widened(p.wproj, d * s.width, copies[4]),   widened(p.bproj, d, copies[5]),
          widened(p.mix1, s.parts * s.parts, copies[6]), widened(p.mix2, s.parts * s.parts, copies[7])};
  }
  View<A> wqkv(int64_t p, const Shape& s) const {  // (3·d, d)
    const A* data = of.wqkv + 3 * p * s.width * s.width;
    return s.dense ? View<A>{data, s.width, 1} : View<A>{data, 1, 3 * s.width};
  }
  View<A> wproj(int64_t p, const Shape& s) const {  // (d, d)
    const A* data = of.wproj + p * s.width * s.width;
    return s.dense ? View<A>{data, s.width, 1} : View<A>{data, 1, s.width};
  }
  View<A> mix1(const Shape& s) const { return {of.mix1, s.parts, 1}; }
  View<A> mix2(const Shape& s) const { return {of.mix2, s.parts, 1}; }
  Rows<A>& attending(const Shape& s) { return s.pool > 1 ? means : y; }
  Rows<A>& into_qkv(const Shape& s) { return s.mixes ? mixed : attending(s); }
  Rows<A>& into_proj(const Shape& s) { return s.mixes ? mixed_out : out; }

  // x -> normed, y = norm(x), its means if there is a pool, qkv
  template <typename T>
  void up_to_qkv(const T* given, const Shape& s, const Unit& unit) {
    const int64_t count = unit.images * s.tokens, few = unit.images * s.attended(), d = s.width;
    for (int64_t p = 0; p < s.parts; ++p)
      to_lanes(given + ((unit.group * s.parts + p) * s.images + unit.image) * s.tokens * d, from(x, p * d), count, d);
    const int64_t width = s.features() / s.norms();
    for (int64_t i = 0, e = 0; i < s.norms(); ++i, e += width)
      norm(from(x, e), from(normed, e), from(y, e), rstd[i], of.gamma + e, of.beta + e, s.eps, width, padded<A>(count));
    for (int64_t e = 0; s.pool > 1 && e < s.features(); ++e) average(y[e], means[e], s, unit.images);
    if (s.mixes) mix(mix1(s), attending(s), mixed, s.parts);
    Rows<A>& in = into_qkv(s);
    for (int64_t p = 0; p < s.parts; ++p)
      product(wqkv(p, s), of.bqkv ? of.bqkv + 3 * p * d : of.bqkv, in[p * d], in.step, qkv[3 * p * d], qkv.step, 3 * d, d,
              padded<A>(few));
  }

  // The means of pool × pool numbers of the planes of a bundle.
  static void average(const A* row, A* mean, const Shape& s, int64_t images) {
    const int64_t pool = s.pool, few = s.across / pool, lines = images * s.tokens / s.across / pool;
    const A share = A(1) / static_cast<A>(pool * pool);
    for (int64_t line = 0; line < lines; ++line)
      for (int64_t x = 0; x < few; ++x) {
        A total(0);
        for (int64_t i = 0; i < pool; ++i)
          for (int64_t j = 0; j < pool; ++j) total += row[(line * pool + i) * s.across + x * pool + j];
        mean[line * few + x] = total * share;
      }
  }

  // The other way round: each number of a mean gets its share.
  void share_out(const A* mean, A* row, const Shape& s, int64_t count) const {
    const A share = A(1) / static_cast<A>(s.pool * s.pool);
    for (int64_t t = 0; t < count; ++t) row[t] = mean[pooled[t]] * share;
  }
};

// The rows of a head of an image: of `each` · d rows of a slice `which` says where those d begin that are meant.
template <typename A>
Row<A> rows_of(Rows<A>& rows, std::vector<A*>& table, const Shape& s, int64_t image, int64_t map, int64_t head,
               int64_t which, int64_t each) {
  const int64_t first = s.joint ? 0 : map, parts = s.joint ? s.parts : 1;
  for (int64_t p = 0; p < parts; ++p)
    for (int64_t e = 0; e < s.size(); ++e) {
      const int64_t m = ((first + p) * each + which) * s.width + head * s.size() + e;
      table[p * s.size() + e] = rows[each == 1 ? s.place(m) : m] + image * s.attended();
    }
  return {table.data()};
}

// Between the rows of a bundle and (d, n) of each image.
template <typename A>
void keep(A* const row, A* kept, int64_t step, const Shape& s, const Unit& unit) {
  for (int64_t b = 0; b < unit.images; ++b)
    for (int64_t e = 0; e < s.width; ++e)
      std::copy_n(row + e * step + b * s.attended(), s.attended(), kept + (b * s.width + e) * s.attended());
}

template <typename A>
void recall(A* row, const A* kept, int64_t step, const Shape& s, const Unit& unit) {
  for (int64_t b = 0; b < unit.images; ++b)
    for (int64_t e = 0; e < s.width; ++e)
      std::copy_n(kept + (b * s.width + e) * s.attended(), s.attended(), row + e * step + b * s.attended());
}

// Where log Σ exp of an image begins.
inline int64_t log_at(const Shape& s, const Unit& unit, int64_t map, int64_t image, int64_t head) {
  return (((unit.group * s.maps() + map) * s.images + unit.image + image) * s.heads + head) * s.attended();
}

template <typename T, typename A>
void forward(const T* x, Parameters<const T> parameters, T* out, A* kept, A* lse, const Shape& s, int threads) {
  const Head head = s.head();
  const int64_t d = s.width;
#pragma omp parallel num_threads(threads)
  {
    Work<A> work(head);
    Rows<A> logs(1, lined(s.attended()) + LINE);
    Group<A> group(s);
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t current = -1;
    for (int64_t index = dealt(s.units(), me, all); index < dealt(s.units(), me + 1, all); ++index) {
      const Unit unit(index, s);
      if (unit.group != current) group.take(parameters.of(current = unit.group, s), s);
      group.up_to_qkv(x, s, unit);
      for (int64_t b = 0; b < unit.images; ++b)
        for (int64_t h = 0; h < s.heads; ++h)
          for (int64_t map = 0; map < s.maps(); ++map) {
            const auto qkv = [&](int64_t which) { return rows_of(group.qkv, work.tables[which], s, b, map, h, which, 3); };
            const Row<A> values = rows_of(group.out, work.tables[3], s, b, map, h, 0, 1);
            const Forward<A> pass{qkv(0), qkv(1), qkv(2), values, logs[0]};
            run(pass, head, work, unit.first, unit.last);
            if (lse) std::copy_n(logs[0], s.attended(), lse + log_at(s, unit, map, b, h));
          }
      if (s.mixes) mix(group.mix2(s), group.out, group.mixed_out, s.parts);
      Rows<A>& into_proj = group.into_proj(s);
      // what is asked for: all tokens, or some of one image
      const int64_t first = s.cuts > 1 ? unit.first : 0, last = s.cuts > 1 ? unit.last : unit.images * s.attended();
      const int64_t count = s.cuts > 1 ? last - first : unit.images * s.tokens;
      for (int64_t p = 0; p < s.parts; ++p) {
        const int64_t start = (unit.group * s.parts + p) * s.images + unit.image, at = (start * s.tokens + first) * d;
        product(group.wproj(p, s), group.of.bproj + p * d, into_proj[p * d] + first, into_proj.step, group.y[0] + first,
                group.y.step, d, d, padded<A>(last - first));
        transpose(group.y[0] + first, group.y.step, group.tokens[0], group.tokens.step, d, last - first);
        for (int64_t t = 0; t < count; ++t) {
          const A* change = group.tokens[group.pooled[t]];
          for (int64_t e = 0; e < d; ++e)
            out[at + t * d + e] = static_cast<T>(static_cast<A>(x[at + t * d + e]) + change[e]);
        }
        if (kept) keep(group.out[p * d], kept + start * s.attended() * d, group.out.step, s, unit);
      }
    }
  }
}

// The sums of what the parameters of a group gain: wqkv as (parts, 3·d, d) and wproj as (parts, d_in, d_out), with rows
// of whole lines.
template <typename A>
struct Gains {
  A *gamma, *beta, *bproj, *bqkv, *mix1, *mix2, *wqkv, *wproj;
  Gains(A* data, const Shape& s) {
    const int64_t d = s.features();
    gamma = data, beta = gamma + d, bproj = beta + d, bqkv = bproj + d;
    mix1 = bqkv + 3 * d, mix2 = mix1 + s.mixes * s.parts * s.parts;
    wqkv = data + lined(vectors(s)), wproj = wqkv + 3 * d * lined(s.width);
  }
  static int64_t vectors(const Shape& s) { return 6 * s.features() + 2 * s.mixes * s.parts * s.parts; }
  static int64_t size(const Shape& s) { return lined(vectors(s)) + 4 * s.features() * lined(s.width); }

  template <typename T>
  void hand_over(Parameters<T> to, const Shape& s) const {
    const int64_t d = s.width, wide = lined(d);
    narrowed(gamma, to.gamma, s.features());
    narrowed(beta, to.beta, s.features());
    narrowed(bproj, to.bproj, s.features());
    narrowed(bqkv, to.bqkv, 3 * s.features());
    narrowed(mix1, to.mix1, s.parts * s.parts);
    narrowed(mix2, to.mix2, s.parts * s.parts);
    for (int64_t p = 0; p < s.parts; ++p) {
      narrowed(wqkv + 3 * p * d * wide, to.wqkv + 3 * p * d * d, 3 * d, d, !s.dense);
      narrowed(wproj + p * d * wide, to.wproj + p * d * d, d, d, s.dense);
    }
  }
};

template <typename T, typename A>
void backward(const T* grad, const T* x, const A* kept, const A* lse, Parameters<const T> parameters, T* d_x,
              Parameters<T> d_parameters, const Shape& s, int threads) {
  const Head head = s.head();
  const int64_t d = s.width, wide = lined(d), bundles = s.bundles();
  Sums<A> sums(threads, Gains<A>::size(s));
  const auto hand_over = [&](int64_t group, A* sum) { Gains<A>(sum, s).hand_over(d_parameters.of(group, s), s); };
#pragma omp parallel num_threads(threads)
  {
    Work<A> work(head);
    Rows<A> logs(1, lined(s.attended()) + LINE), means(1, lined(s.attended()) + LINE);
    Group<A> group(s);
    Rows<A> d_pooled(s.features(), s.few_lanes()), d_out(s.features(), s.few_lanes());  // gradients
    Rows<A> d_qkv(3 * s.features(), s.few_lanes()), grads(s.few_lanes(), wide);          // grads: token by token
    const A* const none = nullptr;
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    const int64_t start = dealt(s.units(), me, all), end = dealt(s.units(), me + 1, all);
    int64_t current = -1;
    A* sum = nullptr;
    for (int64_t index = start; index < end; ++index) {
      const Unit unit(index, s);
      const int64_t count = unit.images * s.tokens, few = unit.images * s.attended(), lanes = padded<A>(few);
      const auto at = [&](int64_t p) { return ((unit.group * s.parts + p) * s.images + unit.image) * s.tokens * d; };
      const bool begins = unit.group * bundles >= start, ends = (unit.group + 1) * bundles <= end;
      if (unit.group != current) {
        group.take(parameters.of(current = unit.group, s), s);
        sum = sums.of(me, unit.group, begins, ends);
      }
      Gains<A> gain(sum, s);
      group.up_to_qkv(x, s, unit);
      for (int64_t p = 0; p < s.parts; ++p)
        recall(group.out[p * d], kept + at(p) / (s.pool * s.pool), group.out.step, s, unit);
      if (s.mixes) mix(group.mix2(s), group.out, group.mixed_out, s.parts);
      for (int64_t p = 0; p < s.parts; ++p) {
        // proj; tokens that were pooled have one gradient together
        std::fill_n(grads[0], lanes * grads.step, A(0));
        for (int64_t t = 0; t < count; ++t) {
          A* sum = grads[group.pooled[t]];
          for (int64_t e = 0; e < d; ++e) sum[e] += static_cast<A>(grad[at(p) + t * d + e]);
        }
        transpose(grads[0], grads.step, d_pooled[p * d], d_pooled.step, lanes, d);
        Rows<A>& read = group.into_proj(s);
        product<true>(View<A>{read[p * d], read.step, 1}, none, grads[0], grads.step, gain.wproj + p * d * wide,
                      wide, d, few, padded<A>(d));
        product(group.wproj(p, s).transposed(), none, d_pooled[p * d], d_pooled.step, d_out[p * d], d_out.step, d, d,
                lanes);
      }
      add_sums(from(d_pooled, 0), gain.bproj, s.features(), lanes);
      if (s.mixes) {
        add_mix_gains(d_out, group.out, gain.mix2, s.parts, lanes);
        mix(group.mix2(s).transposed(), d_out, group.mixed_out, s.parts);
      }
      Rows<A>& d_attended = s.mixes ? group.mixed_out : d_out;
      for (int64_t b = 0; b < unit.images; ++b)
        for (int64_t h = 0; h < s.heads; ++h)
          for (int64_t map = 0; map < s.maps(); ++map) {
            const auto qkv = [&](auto& in, int64_t table, int64_t which) {
              return rows_of(in, work.tables[table], s, b, map, h, which, 3);
            };
            const Row<A> values = rows_of(group.out, work.tables[0], s, b, map, h, 0, 1);
            const Row<A> d_values = rows_of(d_attended, work.tables[1], s, b, map, h, 0, 1), q = qkv(group.qkv, 2, 0);
            prepare(head, q, d_values, values, lse + log_at(s, unit, map, b, h), means[0], logs[0]);
            const Row<A> k = qkv(group.qkv, 3, 1), v = qkv(group.qkv, 4, 2);  // values are not needed any more
            const Backward<A> pass{q, k, v, d_values, qkv(d_qkv, 0, 0), qkv(d_qkv, 5, 1), qkv(d_qkv, 6, 2), logs[0],
                                   means[0]};
            run(pass, head, work);
          }
      // qkv
      for (int64_t e = 0; e < 3 * s.features(); ++e) std::fill(d_qkv[e] + few, d_qkv[e] + lanes, A(0));
      add_sums(from(d_qkv, 0), gain.bqkv, 3 * s.features(), lanes);
      Rows<A>&in = group.into_qkv(s), &d_in = s.pool > 1 ? d_pooled : group.x;
      for (int64_t p = 0; p < s.parts; ++p) {
        transpose(in[p * d], in.step, group.tokens[0], group.tokens.step, d, few);
        product<true>(View<A>{d_qkv[3 * p * d], d_qkv.step, 1}, none, group.tokens[0], group.tokens.step,
                      gain.wqkv + 3 * p * d * wide, wide, 3 * d, few, padded<A>(d));
        product(group.wqkv(p, s).transposed(), none, d_qkv[3 * p * d], d_qkv.step, d_in[p * d], d_in.step, d, 3 * d, lanes);
      }
      if (s.mixes) {
        add_mix_gains(d_in, group.attending(s), gain.mix1, s.parts, lanes);
        mix(group.mix1(s).transposed(), d_in, group.mixed, s.parts);
      }
      Rows<A>&d_attending = s.mixes ? group.mixed : d_in, &d_y = s.pool > 1 ? group.x : d_attending;
      // norm
      const int64_t many = padded<A>(count), width = s.features() / s.norms();
      for (int64_t e = 0; s.pool > 1 && e < s.features(); ++e) {
        group.share_out(d_attending[e], group.x[e], s, count);
        std::fill(group.x[e] + count, group.x[e] + many, A(0));
      }
      for (int64_t i = 0, e = 0; i < s.norms(); ++i, e += width)
        norm_backward(from(d_y, e), from(group.normed, e), group.rstd[i], group.of.gamma + e, gain.gamma + e,
                      gain.beta + e, width, many);
      for (int64_t p = 0; p < s.parts; ++p)
        add_from_lanes(from(d_y, p * d), group.tokens, grad + at(p), d_x + at(p), count, d);
      if (begins && ends && (index + 1) % bundles == 0) hand_over(unit.group, sum);
    }
  }
  sums.hand_over_shared(hand_over);
}

}  // namespace

#define OPERATOR(name, T, A)                                                                                          \
  extern "C" void tcpvit_forward_##name(const T* x, const T* gamma, const T* beta, const T* wqkv, const T* bqkv,      \
                                        const T* wproj, const T* bproj, const T* mix1, const T* mix2, T* y, A* kept,  \
                                        A* lse, const Shape* shape, int threads) {                                    \
    forward<T, A>(x, {gamma, beta, wqkv, bqkv, wproj, bproj, mix1, mix2}, y, kept, lse, *shape, threads);             \
  }                                                                                                                   \
  extern "C" void tcpvit_backward_##name(const T* grad, const T* x, const A* kept, const A* lse, const T* gamma,      \
                                         const T* beta, const T* wqkv, const T* bqkv, const T* wproj, const T* bproj, \
                                         const T* mix1, const T* mix2, T* d_x, T* d_gamma, T* d_beta, T* d_wqkv,      \
                                         T* d_bqkv, T* d_wproj, T* d_bproj, T* d_mix1, T* d_mix2, const Shape* shape, \
                                         int threads) {                                                               \
    backward<T, A>(grad, x, kept, lse, {gamma, beta, wqkv, bqkv, wproj, bproj, mix1, mix2}, d_x,                      \
                   {d_gamma, d_beta, d_wqkv, d_bqkv, d_wproj, d_bproj, d_mix1, d_mix2}, *shape, threads);             \
  }

OPERATOR(float32, float, float)
OPERATOR(float64, double, double)
OPERATOR(bfloat16, c10::BFloat16, float)
