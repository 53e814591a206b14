// Passes over a vocabulary's logits for a draw: division by a temperature, the indices between two bounds, sums of e^x by parts.
//
// The one idea: every pass reads the row once and writes little. Sums are in double, so that a caller with a bound on their error knows
// if a choice is sure. e^x has a relative error below 1e-13.
#pragma once
#include "rows.h"

#if defined(__AVX512F__)
using D = __m512d;
constexpr int HALF = 8;
static inline D twice(double d) { return _mm512_set1_pd(d); }
static inline D widened(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
static inline D fma(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }
static inline D most(D a, D b) { return _mm512_max_pd(a, b); }
static inline D nearest(D a) { return _mm512_roundscale_pd(a, 0); }
static inline D power_of_two(D n) {
  return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(n + twice(6755399441055744.0 + 1023)), 52));
}
static inline void store(double* p, D v) { _mm512_storeu_pd(p, v); }
static inline void cut(int* p, V v) { _mm512_storeu_si512(p, _mm512_cvttps_epi32(v)); }
static inline unsigned inside(V v, V low, V high) {
  return _mm512_cmp_ps_mask(v, low, _CMP_GE_OQ) & _mm512_cmp_ps_mask(v, high, _CMP_LE_OQ);
}
static inline void places(i64* to, i64 i, unsigned bits) {  // write those of i, i + 1 ... whose bits are set; up to 16 numbers are overwritten
  const __m512i from = _mm512_set1_epi64(i), all = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i chosen = _mm512_maskz_compress_epi32(bits, all);
  _mm512_storeu_si512(to, _mm512_add_epi64(from, _mm512_cvtepi32_epi64(_mm512_castsi512_si256(chosen))));
  _mm512_storeu_si512(to + 8, _mm512_add_epi64(from, _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(chosen, 1))));
}
#else
using D = __m256d;
constexpr int HALF = 4;
static inline D twice(double d) { return _mm256_set1_pd(d); }
static inline D widened(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
static inline D fma(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }
static inline D most(D a, D b) { return _mm256_max_pd(a, b); }
static inline D nearest(D a) { return _mm256_round_pd(a, 0); }
static inline D power_of_two(D n) {
  return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(n + twice(6755399441055744.0 + 1023)), 52));
}
static inline void store(double* p, D v) { _mm256_storeu_pd(p, v); }
static inline void cut(int* p, V v) { _mm256_storeu_si256((__m256i*)p, _mm256_cvttps_epi32(v)); }
static inline unsigned inside(V v, V low, V high) {
  return _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(v, low, _CMP_GE_OQ), _mm256_cmp_ps(v, high, _CMP_LE_OQ)));
}
static inline void places(i64* to, i64 i, unsigned bits) {
  for (int j = 0; j < LANES; j++) *to = i + j, to += bits >> j & 1;
}
#endif

// ---- cool: (x - top) / by, each rounded to float
struct Cool {
  const float* x;
  float* y;
  i64 n;
  double top, by;
  FIELDS(x, y, n, top, by)
};
constexpr i64 SHARE = 16 << 10;
static i64 cool_pieces(const Cool& a) { return parts(a.n, SHARE); }
static void cool(const Cool& a, Work& work) {
  const V top = set((float)a.top), by = set((float)a.by);
  for (i64 p; (p = work.next()) >= 0;)
    steps(p * SHARE, p * SHARE + SHARE < a.n ? p * SHARE + SHARE : a.n, [&](i64 i, i64 n) { store(a.y + i, (load(a.x + i, n) - top) / by, n); });
}

// ---- indices_between: the indices of the numbers in [low, high], in order, and their count
struct IndicesBetween {
  const float* x;
  i64 *to, *count, n;
  double low, high;
  FIELDS(x, to, count, n, low, high)
};
static i64 indices_between_pieces(const IndicesBetween&) { return 1; }
static void indices_between(const IndicesBetween& a, Work& work) {
  if (work.next() < 0) return;
  const V low = set((float)a.low), high = set((float)a.high);
  i64 written = 0;
  steps(0, a.n, [&](i64 i, i64 n) {
    unsigned bits = inside(load(a.x + i, n), low, high) & ((1u << n) - 1);
    if (!bits) return;
    if (n == LANES) places(a.to + written, i, bits), written += __builtin_popcount(bits);
    else
      for (; bits; bits &= bits - 1) a.to[written++] = i + __builtin_ctz(bits);
  });
  *a.count = written;
}

// ---- masses: the sum of e^(x - top) over each run of `size` numbers; or, with levels, over each level of each run. Level l has the
// numbers that lie l / rate to (l + 1) / rate below top, the last level also all lower ones
struct Masses {
  const float* x;
  double* to;
  i64 n, size, levels;
  double top, rate;
  FIELDS(x, to, n, size, levels, top, rate)
};
static inline D exponent(D x) {  // e^x for x <= 0; below -700, e^-700
  x = most(x, twice(-700));
  const D n = nearest(x * twice(1.4426950408889634)), r = fma(n, twice(-1.9082149292705877e-10), fma(n, twice(-0.6931471803691238), x));
  D p = twice(1.0 / 39916800);
  for (double f : {3628800., 362880., 40320., 5040., 720., 120., 24., 6., 2., 1., 1.}) p = fma(p, r, twice(1 / f));
  return p * power_of_two(n);
}
static i64 masses_pieces(const Masses& a) {
  return parts(a.n, a.size);
}
static void masses(const Masses& a, Work& work) {
  const D top = twice(a.top);
  const V high = set((float)a.top), rate = set((float)a.rate), last = set((float)(a.levels - 1));
  const V below = set((float)(a.top - (double)(a.levels - 1) / a.rate));
  for (i64 p; (p = work.next()) >= 0;) {
    const i64 to = p * a.size + a.size < a.n ? p * a.size + a.size : a.n;
    double each[LANES], *level = a.to + p * a.levels, rest = 0;
    int at[LANES];
    D even = twice(0), odd = twice(0);
    for (i64 j = 0; j < a.levels; j++) level[j] = 0;
    for (i64 i = p * a.size; i < to; i += LANES) {
      float some[LANES];
      for (i64 j = 0; i + LANES > to && j < LANES; j++) some[j] = i + j < to ? a.x[i + j] : -INFINITY;
      const float* x = i + LANES > to ? some : a.x + i;
      const D first = exponent(widened(x) - top), second = exponent(widened(x + HALF) - top);
      if (!a.levels || !inside(load(x), below, high)) {
        even = even + first, odd = odd + second;
        continue;
      }
      store(each, first), store(each + HALF, second), cut(at, min((high - load(x)) * rate, last));
      for (int j = 0; j < LANES; j++) level[at[j]] += each[j];
    }
    store(each, even + odd);
    for (int j = 0; j < HALF; j++) rest += each[j];
    if (a.levels) level[a.levels - 1] += rest;
    else a.to[p] = rest;
  }
}
