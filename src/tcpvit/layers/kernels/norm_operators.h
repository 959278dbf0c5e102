// The functions that ops.py calls, for each precision: included at the end of a norm's kernel, which defines `Shape`,
// `forward` and `backward`.
#define OPERATOR(name, T, A)                                                                                           \
  extern "C" void tcpvit_forward_##name(const T* x, const T* weight, const T* bias, T* y, A* mean, A* rstd,            \
                                        const Shape* shape, int threads) {                                             \
    forward<T, A>(x, weight, bias, y, mean, rstd, *shape, threads);                                                    \
  }                                                                                                                    \
  extern "C" void tcpvit_backward_##name(const T* grad, const T* x, const T* weight, const A* mean, const A* rstd,     \
                                         T* d_x, A* d_weight, A* d_bias, const Shape* shape, int threads) {            \
    backward<T, A>(grad, x, weight, mean, rstd, d_x, d_weight, d_bias, *shape, threads);                               \
  }

OPERATOR(float32, float, float)
OPERATOR(float64, double, double)
OPERATOR(bfloat16, c10::BFloat16, float)
