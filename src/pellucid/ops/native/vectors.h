// Vectors of 8 (AVX2, NEON, WebAssembly) or 16 (AVX-512) floats, and the two types in memory: float, and bf16 as its 16 bits.
//
// The one idea: everything is computed in float and rounded once, to nearest even, when it is stored. Products are added only by `fma`,
// and the compiler may not contract others (-ffp-contract=off), so a sum has the same bits wherever it is inlined.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

using i64 = int64_t;
using u16 = uint16_t;  // bf16: the upper half of a float
using u8 = uint8_t;
using i8 = int8_t;

#if defined(__wasm__)
#include "vectors_wasm.h"
#elif defined(__aarch64__)
#include "vectors_neon.h"
#else
#include "vectors_x86.h"
#endif

static inline float largest(V a) {
  float each[LANES], top;
  store(each, a);
  top = each[0];
  for (float f : each) top = f > top ? f : top;
  return top;
}

// ---- to and from bf16

// Round v to bf16, in the lower half of each lane. 1 + 2^-8 is halfway between two numbers and becomes the even one, 1.
static inline I rounded(V v) {
  I bits = as_bits(v);
  return pick_nan(v, ints(0x7fc0), down16(plus(plus(bits, ints(0x7fff)), both(down16(bits), ints(1)))));
}
static inline void store(u16* p, V v) { store_low(p, rounded(v)); }

static inline float get(const float* p) { return *p; }
static inline float get(const u16* p) {
  uint32_t bits = (uint32_t)*p << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
static inline void put(float* p, float f) { *p = f; }
static inline void put(u16* p, float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  *p = f != f ? 0x7fc0 : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float near16(float f) {  // f rounded to bf16
  u16 bits;
  put(&bits, f);
  return get(&bits);
}
static inline V as(V v, const float*) { return v; }  // v after a store and a load
static inline V as(V v, const u16*) { return as_float(up16(rounded(v))); }

// Load or store n lanes of a vector. The others are 0, and are not stored.
template <class T>
static inline V load(const T* p, i64 n) {
  if (n >= LANES) return load(p);
  T some[LANES] = {};
  std::memcpy(some, p, n * sizeof(T));
  return load(some);
}
template <class T>
static inline void store(T* p, V v, i64 n) {
  if (n >= LANES) return store(p, v);
  T some[LANES];
  store(some, v);
  std::memcpy(p, some, n * sizeof(T));
}

// Call f(i, lanes) over [from, to): full vectors, then the rest.
template <class F>
static inline void steps(i64 from, i64 to, F f) {
  i64 i = from;
  for (; i + LANES <= to; i += LANES) f(i, LANES);
  if (i < to) f(i, to - i);
}

// ---- pairs: 2 * LANES numbers. Of bf16 one load gives the even ones in a and the odd ones in b; of float a and b are the two halves

constexpr i64 PAIR = 2 * LANES;
static inline void pair(const float* p, V& a, V& b) { a = load(p), b = load(p + LANES); }
static inline void pair(const u16* p, V& a, V& b) {
  I bits = load_bits(p);
  a = as_float(up16(bits)), b = as_float(both(bits, ints((int)0xffff0000)));
}
template <class T>
static inline void pair(const T* p, V& a, V& b, i64 n) {
  if (n >= PAIR) return pair(p, a, b);
  T some[PAIR] = {};
  std::memcpy(some, p, n * sizeof(T));
  pair(some, a, b);
}
static inline void unpair(float* p, V a, V b) { store(p, a), store(p + LANES, b); }
static inline void unpair(u16* p, V a, V b) { store_bits(p, either(rounded(a), up16(rounded(b)))); }
template <class T>
static inline void unpair(T* p, V a, V b, i64 n) {
  if (n >= PAIR) return unpair(p, a, b);
  T some[PAIR];
  unpair(some, a, b);
  std::memcpy(p, some, n * sizeof(T));
}

// ---- factors: a PAIR of w and one of x, loaded to be multiplied. x is kept as Factor<T>: in float, or as its own bf16 where the processor
// multiplies bf16, since then nothing has to be widened. Either way x is what the op was given, to the bit.

struct Wide {
  V a, b;
};
static inline void factor(const float* p, Wide& to) { pair(p, to.a, to.b); }
static inline void factor(const u16* p, Wide& to) { pair(p, to.a, to.b); }
static inline void factor(const u16* p, I& to) { to = load_bits(p); }
template <class T, class F>
static inline void factor(const T* p, F& to, i64 n) {
  if (n >= PAIR) return factor(p, to);
  T some[PAIR] = {};
  std::memcpy(some, p, n * sizeof(T));
  factor(some, to);
}
static inline void kept(Wide& f) { kept(f.a, f.b); }
// Add the products to even and odd, in this order; they may be one vector.
static inline void meet(const Wide& w, const Wide& x, V& even, V& odd) { even = fma(w.a, x.a, even), odd = fma(w.b, x.b, odd); }
static inline void add_product(V w, V x, V& sum, float) { sum = fma(w, x, sum); }  // of words: a float in each lane, or two numbers in bf16
#if defined(MULTIPLIES_BF16)
// Add to each lane the products of its two numbers: the odd ones' and then the even ones', each a fused multiply-add that rounds to nearest
// even. So a sum's error is bounded as with `fma`, but numbers below 2^-126 count as 0 here: of w, of x, and of the sums.
static inline void meet(I w, I x, V& sum, V&) { sum = add_dots(sum, w, x); }
static inline void add_product(V w, V x, V& sum, u16) { meet(as_bits(w), as_bits(x), sum, sum); }
template <class T>
using Factor = T;
#else
template <class T>
using Factor = float;
#endif
template <class X>
using Loaded = std::conditional_t<std::is_same_v<X, float>, Wide, I>;

// Call f with n, from 1 to MOST, as a compile-time constant.
template <int MOST, class F>
static inline void fixed(i64 n, F f) {
  if (n == MOST) f(std::integral_constant<int, MOST>{});
  else if constexpr (MOST > 1) fixed<MOST - 1>(n, f);
}
static inline i64 parts(i64 n, i64 size) { return (n + size - 1) / size; }
static inline i64 padded(i64 n) { return parts(n, PAIR) * PAIR; }

// Write x [n] as floats in the order of `pair`, with zeros up to padded(n). stride: from one PAIR to the next.
template <class T>
static inline void arrange(const T* x, float* to, i64 n, i64 stride = PAIR) {
  for (i64 i = 0; i < n; i += PAIR, to += stride) {
    V a, b;
    pair(x + i, a, b, n - i);
    store(to, a), store(to + LANES, b);
  }
}

// Write x [n] as it is, with zeros up to padded(n).
static inline void arrange(const u16* x, u16* to, i64 n, i64 stride = PAIR) {
  for (i64 i = 0; i < n; i += PAIR, to += stride) {
    I bits;
    factor(x + i, bits, n - i);
    store_bits(to, bits);
  }
}

// ---- functions

// e^x to about 2 units in the last place; a NaN stays one.
static inline V exponent(V x) {
  x = max(set(-87.f), min(set(88.f), x));
  V n = nearest(x * set(1.44269504f)), r = fma(n, set(2.12194440e-4f), fma(n, set(-0.693359375f), x)), p = set(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f, 1.f, 1.f}) p = fma(p, r, set(c));
  return p * power_of_two(n);
}
// 1 - erf(z) for z >= 0, relative error below 1.2e-7 (W. H. Press et al., Numerical Recipes, 6.2).
static inline V erfc(V z) {
  V t = set(1.f) / fma(z, set(0.5f), set(1.f)), p = set(0.17087277f);
  for (float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f})
    p = fma(p, t, set(c));
  return t * exponent(fma(z, set(0.f) - z, p));
}
// tanh x, relative error below 4e-7: a polynomial near 0 (Cephes), 1 - 2 / (e^2x + 1) elsewhere.
static inline V tangent(V x) {
  V square = x * x, p = set(-5.70498872745e-3f), size = max(x, set(0.f) - x);
  for (float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) p = fma(p, square, set(c));
  return where(size, set(0.625f), fma(p * square, x, x), set(1.f) - set(2.f) / (exponent(x + x) + set(1.f)));
}
