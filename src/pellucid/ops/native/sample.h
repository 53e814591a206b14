// A draw from a whole vocabulary: logits over a temperature, which of them lie between two numbers, and e to them summed in parts.
//
// The one idea: every pass reads the row once and writes little, and its sums are in double, so that a caller who knows how far they may
// be off knows every choice that follows from them. e^x is right to 1e-15 of itself.
#pragma once
#include "rows.h"

#if defined(__AVX512F__)
using D = __m512d;
constexpr int HALF = 8;
static inline D twice(double d) { return _mm512_set1_pd(d); }
static inline D wide8(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
static inline D fma(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }
static inline D least(D a, D b) { return _mm512_min_pd(a, b); }
static inline D most(D a, D b) { return _mm512_max_pd(a, b); }
static inline D nearest(D a) { return _mm512_roundscale_pd(a, 0); }
static inline D power_of_two(D n) {
  return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(n + twice(6755399441055744.0 + 1023)), 52));
}
static inline void store(double* p, D v) { _mm512_storeu_pd(p, v); }
static inline unsigned inside(V v, V low, V high) {
  return _mm512_cmp_ps_mask(v, low, _CMP_GE_OQ) & _mm512_cmp_ps_mask(v, high, _CMP_LE_OQ);
}
#else
using D = __m256d;
constexpr int HALF = 4;
static inline D twice(double d) { return _mm256_set1_pd(d); }
static inline D wide8(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
static inline D fma(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }
static inline D least(D a, D b) { return _mm256_min_pd(a, b); }
static inline D most(D a, D b) { return _mm256_max_pd(a, b); }
static inline D nearest(D a) { return _mm256_round_pd(a, 0); }
static inline D power_of_two(D n) {
  return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(n + twice(6755399441055744.0 + 1023)), 52));
}
static inline void store(double* p, D v) { _mm256_storeu_pd(p, v); }
static inline unsigned inside(V v, V low, V high) {
  return _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(v, low, _CMP_GE_OQ), _mm256_cmp_ps(v, high, _CMP_LE_OQ)));
}
#endif

// ---- cool: (x - top) / by, each rounded to float
struct Cool {
  const float* x;
  float* y;
  i64 n;
  double top, by;
};
constexpr i64 SHARE = 16 << 10;
static i64 cool_pieces(const i64* words) { return parts(((const Cool*)words)->n, SHARE); }
static void cool(const i64* words, Work& work) {
  auto& a = *(const Cool*)words;
  const V top = set((float)a.top), by = set((float)a.by);
  for (i64 p; (p = work.next()) >= 0;)
    steps(p * SHARE, p * SHARE + SHARE < a.n ? p * SHARE + SHARE : a.n, [&](i64 i, i64 n) { store(a.y + i, (load(a.x + i, n) - top) / by, n); });
}

// ---- within: the places of those x that lie from low to high, in order, and how many
struct Within {
  const float* x;
  i64 *to, *count, n;
  double low, high;
};
static i64 within_pieces(const i64*) { return 1; }
static void within(const i64* words, Work& work) {
  auto& a = *(const Within*)words;
  if (work.next() < 0) return;
  const V low = set((float)a.low), high = set((float)a.high);
  i64 found = 0;
  steps(0, a.n, [&](i64 i, i64 n) {
    for (unsigned bits = inside(load(a.x + i, n), low, high) & ((1u << n) - 1); bits; bits &= bits - 1) a.to[found++] = i + __builtin_ctz(bits);
  });
  *a.count = found;
}

// ---- masses: the sum of e^(x - top) over each run of `size` numbers; or, where there are levels, over each level of each run: level l
// holds those that lie l to l + 1 of STEP-ths below top, the last one all that lie lower
struct Masses {
  const float* x;
  double* to;
  i64 n, size, levels;
  double top;
};
constexpr double STEP = 32;
static inline D exponent(D x) {  // of x up to 0; below -700, e^-700
  x = most(x, twice(-700));
  const D n = nearest(x * twice(1.4426950408889634)), r = fma(n, twice(-1.9082149292705877e-10), fma(n, twice(-0.6931471803691238), x));
  D p = twice(1.0 / 6227020800);
  for (double f : {479001600., 39916800., 3628800., 362880., 40320., 5040., 720., 120., 24., 6., 2., 1., 1.}) p = fma(p, r, twice(1 / f));
  return p * power_of_two(n);
}
static i64 masses_pieces(const i64* words) {
  auto& a = *(const Masses*)words;
  return parts(a.n, a.size);
}
static void masses(const i64* words, Work& work) {
  auto& a = *(const Masses*)words;
  const D top = twice(a.top);
  for (i64 p; (p = work.next()) >= 0;) {
    const i64 from = p * a.size, to = from + a.size < a.n ? from + a.size : a.n;
    double each[HALF], *level = a.to + p * a.levels;
    int at[HALF];
    D sum = twice(0);
    for (i64 j = 0; j < a.levels; j++) level[j] = 0;
    for (i64 i = from; i < to; i += HALF) {
      float some[HALF];
      const float* x = a.x + i;
      if (to - i < HALF) {
        for (i64 j = 0; j < HALF; j++) some[j] = j < to - i ? x[j] : -INFINITY;
        x = some;
      }
      const D down = wide8(x) - top;
      const D mass = exponent(down);
      if (!a.levels) {
        sum = sum + mass;
        continue;
      }
      store(each, mass);
      for (int j = 0; j < HALF; j++) level[at[j]] += each[j];
    }
    if (a.levels) continue;
    store(each, sum);
    a.to[p] = 0;
    for (double e : each) a.to[p] += e;
  }
}
