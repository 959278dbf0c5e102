// The attention half of a block, x + proj(attention(norm(x))), forward and backward, on images that stay in the cache.
//
// The images of a bundle lie side by side in the lanes, so that few lanes are empty. What forward keeps is the attended
// values and log Σ exp of the scores; backward computes norm and qkv again.
//
// x, y (C, B, N, d)   γ, β (C, d)   wqkv (C, d, 3·d)   bqkv (C, 3·d) or null   wproj (C, d, d)   bproj (C, d)
// kept (C, B, d, N)   lse (C or 1, B, H, N): null if there is no backward
// `dense`: weights as those of nn.Linear, (3·d, d) and (d, d). Joint attention takes all slices of an image together.
#include <omp.h>

#include "heads.h"
#include "lanes.h"

namespace {

struct Shape {
  int64_t slices, images, tokens, width, heads, joint, dense;
  int64_t bundle, cuts;  // images that are a unit of work; or into how many the queries of one image are cut
  double eps;

  int64_t parts() const { return joint ? slices : 1; }
  int64_t groups() const { return joint ? 1 : slices; }  // that are worked on one by one
  int64_t bundles() const { return (images + bundle - 1) / bundle; }
  int64_t units() const { return groups() * bundles() * cuts; }
  int64_t size() const { return width / heads; }
  Head head() const { return {tokens, parts() * size(), 1 / std::sqrt(static_cast<double>(parts() * size()))}; }
};

template <typename T>
struct Parameters {
  const T *gamma, *beta, *wqkv, *bqkv, *wproj, *bproj;
  Parameters of(int64_t k, const Shape& s) const {
    const int64_t d = s.width;
    return {gamma + k * d, beta + k * d, wqkv + 3 * k * d * d, bqkv ? bqkv + 3 * k * d : bqkv, wproj + k * d * d,
            bproj + k * d};
  }
};

// A unit of work: which images of which group, and which of their tokens are asked for.
struct Unit {
  int64_t group, image, images, first, last;
  Unit(int64_t unit, const Shape& s) {
    const int64_t cut = unit % s.cuts, vectors = (s.tokens + LINE - 1) / LINE;
    group = unit / s.cuts / s.bundles();
    image = unit / s.cuts % s.bundles() * s.bundle;
    images = std::min(s.bundle, s.images - image);
    first = vectors * cut / s.cuts * LINE;
    last = std::min(vectors * (cut + 1) / s.cuts * LINE, s.tokens);
  }
};

// The tokens of a bundle in one slice, and the parameters of that slice.
template <typename A>
struct Slice {
  Rows<A> x, normed, y, qkv, out, tokens, rstd, copies[6];
  Parameters<A> of;
  View<A> wqkv, wproj;  // (3·d, d) and (d, d)

  explicit Slice(const Shape& s) {
    const int64_t d = s.width, lanes = lined(s.bundle * s.tokens) + LINE;
    for (Rows<A>* rows : {&x, &normed, &y, &out}) *rows = Rows<A>(d, lanes);
    qkv = Rows<A>(3 * d, lanes), tokens = Rows<A>(lanes, lined(d)), rstd = Rows<A>(1, lanes);
  }

  template <typename T>
  void take(const Parameters<T>& p, const Shape& s) {
    const int64_t d = s.width;
    of = {widened(p.gamma, d, copies[0]),       widened(p.beta, d, copies[1]),
          widened(p.wqkv, 3 * d * d, copies[2]), widened(p.bqkv, 3 * d, copies[3]),
          widened(p.wproj, d * d, copies[4]),   widened(p.bproj, d, copies[5])};
    wqkv = s.dense ? View<A>{of.wqkv, d, 1} : View<A>{of.wqkv, 1, 3 * d};
    wproj = s.dense ? View<A>{of.wproj, d, 1} : View<A>{of.wproj, 1, d};
  }

  // x -> normed, y = norm(x), qkv
  template <typename T>
  void up_to_qkv(const T* from, const Shape& s, int64_t count) {
    to_lanes(from, x, count, s.width);
    norm(x, normed, y, rstd[0], of.gamma, of.beta, s.eps, s.width, padded<A>(count));
    product(wqkv, of.bqkv, y[0], y.step, qkv[0], qkv.step, 3 * s.width, s.width, padded<A>(count));
  }
};

// The rows of a head of an image: `which` is 0 for queries (and for what has no others), 1 keys, 2 values.
template <typename A>
Row<A> rows_of(std::vector<Slice<A>>& slices, Rows<A> Slice<A>::* in, const Shape& s, int64_t image, int64_t head,
               int64_t which = 0) {
  Row<A> found;
  for (int64_t p = 0; p < s.parts(); ++p)
    for (int64_t e = 0; e < s.size(); ++e)
      found.of[p * s.size() + e] = (slices[p].*in)[which * s.width + head * s.size() + e] + image * s.tokens;
  return found;
}

template <typename A>
std::vector<Slice<A>> make_slices(const Shape& s) {
  std::vector<Slice<A>> slices;
  for (int64_t p = 0; p < s.parts(); ++p) slices.emplace_back(s);
  return slices;
}

// Between the rows of a bundle and (d, N) of each image.
template <typename A>
void keep(Rows<A>& rows, A* kept, const Shape& s, const Unit& unit) {
  for (int64_t b = 0; b < unit.images; ++b)
    for (int64_t e = 0; e < s.width; ++e)
      std::copy_n(rows[e] + b * s.tokens, s.tokens, kept + (b * s.width + e) * s.tokens);
}

template <typename A>
void recall(Rows<A>& rows, const A* kept, const Shape& s, const Unit& unit) {
  for (int64_t b = 0; b < unit.images; ++b)
    for (int64_t e = 0; e < s.width; ++e)
      std::copy_n(kept + (b * s.width + e) * s.tokens, s.tokens, rows[e] + b * s.tokens);
}

template <typename T, typename A>
void forward(const T* x, Parameters<T> parameters, T* out, A* kept, A* lse, const Shape& s, int threads) {
  const Head head = s.head();
  const int64_t d = s.width;
#pragma omp parallel num_threads(threads)
  {
    Work<A> work(s.tokens);
    Rows<A> logs(1, lined(s.tokens) + LINE);
    auto slices = make_slices<A>(s);
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t current = -1;
    for (int64_t index = dealt(s.units(), me, all); index < dealt(s.units(), me + 1, all); ++index) {
      const Unit unit(index, s);
      const int64_t count = unit.images * s.tokens;
      for (int64_t p = 0; p < s.parts(); ++p) {
        const int64_t k = unit.group + p;
        if (unit.group != current) slices[p].take(parameters.of(k, s), s);
        slices[p].up_to_qkv(x + (k * s.images + unit.image) * s.tokens * d, s, count);
      }
      current = unit.group;
      for (int64_t b = 0; b < unit.images; ++b)
        for (int64_t h = 0; h < s.heads; ++h) {
          const auto qkv = [&](int64_t which) { return rows_of(slices, &Slice<A>::qkv, s, b, h, which); };
          const Forward<A> pass{qkv(0), qkv(1), qkv(2), rows_of(slices, &Slice<A>::out, s, b, h), logs[0]};
          run(pass, head, work, unit.first, unit.last);
          if (lse)
            std::copy_n(logs[0], s.tokens,
                        lse + (((unit.group * s.images) + unit.image + b) * s.heads + h) * s.tokens);
        }
      // what is asked for: all tokens, or some of one image
      const int64_t first = s.cuts > 1 ? unit.first : 0, last = s.cuts > 1 ? unit.last : count;
      for (int64_t p = 0; p < s.parts(); ++p) {
        Slice<A>& slice = slices[p];
        const int64_t start = (unit.group + p) * s.images + unit.image, at = (start * s.tokens + first) * d;
        product(slice.wproj, slice.of.bproj, slice.out[0] + first, slice.out.step, slice.y[0] + first, slice.y.step, d, d,
                padded<A>(last - first));
        add_from_lanes(slice.y, first, slice.tokens, x + at, out + at, last - first, d);
        if (kept) keep(slice.out, kept + start * s.tokens * d, s, unit);
      }
    }
  }
}

// What the parameters of a slice gain: wqkv as (3·d, d) and wproj as (d_in, d_out), with rows of whole lines.
template <typename A>
struct Gains {
  A *gamma, *beta, *bproj, *bqkv, *wqkv, *wproj;
  Gains(A* data, const Shape& s) {
    const int64_t d = s.width;
    gamma = data, beta = gamma + d, bproj = beta + d, bqkv = bproj + d;
    wqkv = data + lined(6 * d), wproj = wqkv + 3 * d * lined(d);
  }
  static int64_t size(const Shape& s) { return lined(6 * s.width) + 4 * s.width * lined(s.width); }
};

// `gains` is (slices, Gains::size), zero at first.
template <typename T, typename A>
void backward(const T* grad, const T* x, const A* kept, const A* lse, Parameters<T> parameters, T* d_x, A* gains,
              const Shape& s, int threads) {
  const Head head = s.head();
  const int64_t d = s.width, size = Gains<A>::size(s), lanes_held = lined(s.bundle * s.tokens) + LINE;
  Begun<A> begun(threads, s.parts() * size);
#pragma omp parallel num_threads(threads)
  {
    Work<A> work(s.tokens);
    Rows<A> logs(1, lined(s.tokens) + LINE), means(1, lined(s.tokens) + LINE);
    auto slices = make_slices<A>(s), changes = make_slices<A>(s);  // changes: gradients of out, qkv and x
    std::vector<Rows<A>> grads;
    for (int64_t p = 0; p < s.parts(); ++p) grads.emplace_back(lanes_held, lined(d));  // token by token
    const A* const none = nullptr;
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads(), start = dealt(s.units(), me, all);
    int64_t current = -1;
    for (int64_t index = start; index < dealt(s.units(), me + 1, all); ++index) {
      const Unit unit(index, s);
      const int64_t count = unit.images * s.tokens, lanes = padded<A>(count);
      const bool begins = unit.group * s.bundles() >= start;
      A* gain_data = begins ? gains + unit.group * size : begun.by_another(me, unit.group);
      for (int64_t p = 0; p < s.parts(); ++p) {
        const int64_t k = unit.group + p, at = (k * s.images + unit.image) * s.tokens * d;
        Slice<A>&slice = slices[p], &change = changes[p];
        Gains<A> gain(gain_data + p * size, s);
        if (unit.group != current) slice.take(parameters.of(k, s), s);
        slice.up_to_qkv(x + at, s, count);
        recall(slice.out, kept + at, s, unit);
        // proj
        for (int64_t e = 0; e < d; ++e) std::fill(change.x[e] + count, change.x[e] + lanes, A(0));
        to_lanes(grad + at, change.x, count, d);
        for (int64_t t = 0; t < count; ++t)
          for (int64_t e = 0; e < d; ++e) grads[p][t][e] = static_cast<A>(grad[at + t * d + e]);
        product<true>(View<A>{slice.out[0], slice.out.step, 1}, none, grads[p][0], grads[p].step, gain.wproj, lined(d), d,
                      count, padded<A>(d));
        add_sums(change.x, gain.bproj, d, lanes);
        product(slice.wproj.transposed(), none, change.x[0], change.x.step, change.out[0], change.out.step, d, d, lanes);
      }
      current = unit.group;
      for (int64_t b = 0; b < unit.images; ++b)
        for (int64_t h = 0; h < s.heads; ++h) {
          const auto qkv = [&](auto& in, int64_t which) { return rows_of(in, &Slice<A>::qkv, s, b, h, which); };
          const Row<A> d_out = rows_of(changes, &Slice<A>::out, s, b, h), out = rows_of(slices, &Slice<A>::out, s, b, h);
          prepare(head, d_out, out, lse + ((unit.group * s.images + unit.image + b) * s.heads + h) * s.tokens, means[0],
                  logs[0]);
          const Backward<A> pass{qkv(slices, 0),  qkv(slices, 1),  qkv(slices, 2), d_out,  qkv(changes, 0),
                                 qkv(changes, 1), qkv(changes, 2), logs[0],        means[0]};
          run(pass, head, work);
        }
      for (int64_t p = 0; p < s.parts(); ++p) {
        const int64_t at = ((unit.group + p) * s.images + unit.image) * s.tokens * d;
        Slice<A>&slice = slices[p], &change = changes[p];
        Gains<A> gain(gain_data + p * size, s);
        // qkv
        for (int64_t e = 0; e < 3 * d; ++e) std::fill(change.qkv[e] + count, change.qkv[e] + lanes, A(0));
        transpose(slice.y[0], slice.y.step, slice.tokens[0], slice.tokens.step, d, count);
        product<true>(View<A>{change.qkv[0], change.qkv.step, 1}, none, slice.tokens[0], slice.tokens.step, gain.wqkv,
                      lined(d), 3 * d, count, padded<A>(d));
        add_sums(change.qkv, gain.bqkv, 3 * d, lanes);
        product(slice.wqkv.transposed(), none, change.qkv[0], change.qkv.step, change.x[0], change.x.step, d, 3 * d,
                lanes);
        norm_backward(change.x, slice.normed, slice.rstd[0], slice.of.gamma, gain.gamma, gain.beta, d, lanes);
        add_from_lanes(change.x, 0, slice.tokens, grad + at, d_x + at, count, d);
      }
    }
  }
  begun.add_to(gains);
}

}  // namespace

#define OPERATOR(name, T, A)                                                                                          \
  extern "C" void tcpvit_forward_##name(const T* x, const T* gamma, const T* beta, const T* wqkv, const T* bqkv,      \
                                        const T* wproj, const T* bproj, T* y, A* kept, A* lse, const Shape* shape,    \
                                        int threads) {                                                                \
    forward<T, A>(x, {gamma, beta, wqkv, bqkv, wproj, bproj}, y, kept, lse, *shape, threads);                         \
  }                                                                                                                   \
  extern "C" void tcpvit_backward_##name(const T* grad, const T* x, const A* kept, const A* lse, const T* gamma,      \
                                         const T* beta, const T* wqkv, const T* bqkv, const T* wproj, const T* bproj, \
                                         T* d_x, A* gains, const Shape* shape, int threads) {                         \
    backward<T, A>(grad, x, kept, lse, {gamma, beta, wqkv, bqkv, wproj, bproj}, d_x, gains, *shape, threads);         \
  }

OPERATOR(float32, float, float)
OPERATOR(float64, double, double)
OPERATOR(bfloat16, c10::BFloat16, float)
