// Vectors of 8 floats for WebAssembly, each two of its own of 4: the kernels in a browser, for the page in one file.
//
// Sums are added in the order of AVX2. WebAssembly has no fused multiply-add that gives the same bits everywhere, so `fma` rounds twice here:
// a page's numbers lie within float32 rounding of the other kernels', and have the same bits in every browser.
#pragma once
#include <wasm_simd128.h>

using V = float __attribute__((vector_size(32)));
using I = int32_t __attribute__((vector_size(32)));
using U = uint32_t __attribute__((vector_size(32)));
using Eight = V;
constexpr i64 LANES = 8;
static inline V set(float f) { return V{f, f, f, f, f, f, f, f}; }
static inline I ints(int i) { return I{i, i, i, i, i, i, i, i}; }
static inline I load_bits(const void* p) {
  I v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline void store_bits(void* p, I v) { std::memcpy(p, &v, sizeof v); }
static inline V as_float(I v) { return (V)v; }
static inline I as_bits(V v) { return (I)v; }
static inline I up16(I v) { return v << 16; }
static inline I down16(I v) { return (I)((U)v >> 16); }
static inline I both(I a, I b) { return a & b; }
static inline I either(I a, I b) { return a | b; }
static inline I plus(I a, I b) { return a + b; }
static inline V load(const float* p) { return as_float(load_bits(p)); }
static inline V load(const u16* p) {
  u16 __attribute__((vector_size(16))) v;
  std::memcpy(&v, p, sizeof v);
  return as_float(up16(__builtin_convertvector(v, I)));
}
static inline void store(float* p, V v) { store_bits(p, as_bits(v)); }
static inline V fma(V a, V b, V c) { return a * b + c; }
static inline V max(V a, V b) { return a > b ? a : b; }
static inline V min(V a, V b) { return a < b ? a : b; }
static inline V where(V a, V below, V yes, V no) { return a < below ? yes : no; }
static inline I pick_nan(V v, I nan, I other) { return v != v ? nan : other; }
static inline v128_t low(V v) { return (v128_t)__builtin_shufflevector(v, v, 0, 1, 2, 3); }
static inline v128_t high(V v) { return (v128_t)__builtin_shufflevector(v, v, 4, 5, 6, 7); }
static inline V whole(v128_t low, v128_t high) {
  using F = float __attribute__((vector_size(16)));
  return __builtin_shufflevector((F)low, (F)high, 0, 1, 2, 3, 4, 5, 6, 7);
}
static inline V root(V a) { return whole(wasm_f32x4_sqrt(low(a)), wasm_f32x4_sqrt(high(a))); }
static inline V nearest(V a) { return whole(wasm_f32x4_nearest(low(a)), wasm_f32x4_nearest(high(a))); }
static inline V power_of_two(V n) { return as_float((__builtin_convertvector(n, I) + ints(127)) << 23); }
static inline bool any_nan(V a) { return wasm_v128_any_true(wasm_v128_or(low((V)(a != a)), high((V)(a != a)))); }
static inline void store_low(u16* p, I v) {
  const auto cut = __builtin_convertvector(v, u16 __attribute__((vector_size(16))));
  std::memcpy(p, &cut, sizeof cut);
}
static inline float total(V a) {
  const v128_t h = wasm_f32x4_add(low(a), high(a)), g = wasm_f32x4_add(h, wasm_i32x4_shuffle(h, h, 2, 3, 2, 3));
  return wasm_f32x4_extract_lane(g, 0) + wasm_f32x4_extract_lane(g, 1);
}
// Return the totals of N vectors, lane l that of v[l].
template <int N>
static inline V totals(const V* v) {
  static_assert(N <= LANES);
  V sums = set(0.f);
  for (int i = 0; i < N; i++) sums[i] = total(v[i]);
  return sums;
}
// Sum eight vectors, each to one lane of the result, in the order of AVX2's horizontal additions.
static inline Eight eight(const V* a) {
  V sums;
  for (int i = 0; i < 8; i++) {
    const auto four = [](v128_t h) {
      const v128_t pairs = wasm_f32x4_add(h, wasm_i32x4_shuffle(h, h, 1, 0, 3, 2));
      return wasm_f32x4_extract_lane(pairs, 0) + wasm_f32x4_extract_lane(pairs, 2);
    };
    sums[i] = four(low(a[i])) + four(high(a[i]));
  }
  return sums;
}
static inline Eight set8(float f) { return set(f); }
static inline void store8(float* p, Eight v) { store(p, v); }
// Transpose eight vectors of eight: to[at[j] + i] = v[i][j].
static inline void transpose(const Eight* v, float* to, const i64* at) {
  for (int j = 0; j < 8; j++)
    for (int i = 0; i < 8; i++) to[at[j] + i] = v[i][j];
}
static inline void halves(V v, Eight* out) { out[0] = v; }
static inline void kept(V&, V&) {}
static inline void kept(I&) {}
