// Depthwise filters of side × side on the grid of an image's tokens.
//
// The tokens of a feature are a plane of height × across numbers. It is copied to where zeros lie between its rows, enough
// for a filter that reaches beyond them; then rows need no care, and vectors may run across their ends.
#pragma once
#include "vectors.h"

namespace {

constexpr int64_t MOST_TAPS = 81;

template <typename A>
struct Filter {
  static constexpr int64_t W = Vec<A>::size();
  int64_t height, across, side, reach, step, start, numbers;
  Rows<A> in, out, result;  // two spread planes, and what comes of one
  int64_t offset[MOST_TAPS];  // of a tap, from the number in its middle

  Filter(int64_t height, int64_t across, int64_t side)
      : height(height), across(across), side(side), reach(side / 2), step(across + reach), start(reach * step + reach),
        numbers(height * step) {
    if (!side) return;
    const int64_t length = lined(start + numbers + start + 2 * LINE);
    in = Rows<A>(1, length), out = Rows<A>(1, length), result = Rows<A>(1, lined(numbers) + LINE);
    for (int64_t tap = 0; tap < side * side; ++tap) offset[tap] = (tap / side - reach) * step + tap % side - reach;
  }

  // Rows one after the other -> rows with zeros between.
  void spread(const A* plane, Rows<A>& to) const {
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < across; x += W)
        Vec<A>::loadu(plane + y * across + x, std::min(W, across - x)).store(to.begin() + start + y * step + x);
  }

  void gather(A* plane) {
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < across; x += W)
        Vec<A>::loadu(result.begin() + y * step + x).store(plane + y * across + x, std::min(W, across - x));
  }

  // plane = bias + Σ_tap weights[tap] · from[its neighbour]
  void apply(Rows<A>& from, const A* weights, A bias, A* plane) {
    side == 3 ? run<9>(from, weights, bias) : run<0>(from, weights, bias);
    gather(plane);
  }

  // The gradient of what `apply` read, from that of what it gave.
  void apply_transposed(Rows<A>& from, const A* weights, A* plane) {
    A turned[MOST_TAPS];
    std::reverse_copy(weights, weights + side * side, turned);
    apply(from, turned, A(0), plane);
  }

  template <int TAPS>
  void run(Rows<A>& from, const A* weights, A bias) {
    const int64_t taps = TAPS ? TAPS : side * side;
    const A* middle = from.begin() + start;
    for (int64_t n = 0; n < numbers; n += W) {
      Vec<A> total(bias);
      for (int64_t tap = 0; tap < taps; ++tap)
        total = fmadd(Vec<A>(weights[tap]), Vec<A>::loadu(middle + n + offset[tap]), total);
      total.store(result.begin() + n);
    }
  }

  // What each tap gains from the gradients in `out` and the numbers in `in`, in the lanes of a line.
  void add_gains(A* gains) { side == 3 ? gain<9>(gains) : gain<1>(gains); }

  template <int TOGETHER>
  void gain(A* gains) {
    const A *grads = out.begin() + start, *numbers_in = in.begin() + start;
    for (int64_t tap = 0; tap < side * side; tap += TOGETHER) {
      Vec<A> total[TOGETHER];
      for (int i = 0; i < TOGETHER; ++i) total[i] = Vec<A>::loadu(gains + (tap + i) * LINE);
      for (int64_t n = 0; n < numbers; n += W) {
        const Vec<A> grad = Vec<A>::loadu(grads + n);
        for (int i = 0; i < TOGETHER; ++i)
          total[i] = fmadd(grad, Vec<A>::loadu(numbers_in + n + offset[tap + i]), total[i]);
      }
      for (int i = 0; i < TOGETHER; ++i) total[i].store(gains + (tap + i) * LINE);
    }
  }
};

}  // namespace
