// An activation with two learned numbers (arXiv 2411.13010).
#pragma once
#include "rows.h"

// ---- xielu: p x^2 + beta x above 0, else n (e^min(x, eps) - 1 - x) + beta x; p = ln(1 + e^alpha_p), n = beta + ln(1 + e^alpha_n)
template <class T>
struct Xielu {
  const T *x, *alpha_p, *alpha_n, *beta, *eps;
  T* y;
  i64 n;
  FIELDS(x, alpha_p, alpha_n, beta, eps, y, n)
};
template <class T>
static i64 xielu_pieces(const Xielu<T>& a) {
  return runs(a.n);
}
template <class T>
static void xielu(const Xielu<T>& a, Work& work) {
  const float beta = get(a.beta), eps = get(a.eps), up = std::log1p(std::exp(get(a.alpha_p))), down = beta + std::log1p(std::exp(get(a.alpha_n)));
  each_run(work, a.n, [&](i64 from, i64 n) {
    for (i64 i = from; i < from + n; i++) {  // one by one: near 0 only expm1 keeps the digits of e^x - 1 - x
      const float x = get(a.x + i);
      put(a.y + i, (x > 0 ? up * x * x : (std::expm1(x < eps ? x : eps) - x) * down) + beta * x);
    }
  });
}
