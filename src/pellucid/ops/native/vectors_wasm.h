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
static inline void prefetch_l1(const void*) {}
static inline void prefetch_l2(const void*) {}
static inline void kept(V&, V&) {}
static inline void kept(I&) {}

// ---- of weights in blocks: bytes, four in each lane, and half-precision numbers

using Bytes8 = int8_t __attribute__((vector_size(8)));
static inline I no_bits() { return ints(0); }
static inline v128_t low_bits(I v) { return low(as_float(v)); }
static inline v128_t high_bits(I v) { return high(as_float(v)); }
static inline I whole_bits(v128_t a, v128_t b) { return as_bits(whole(a, b)); }
// fp16: its bits in place of a float's are 2^112 too small; an infinity or a NaN keeps its exponent full.
static inline V wide_halves(I h) {
  const I bits = both(h, ints(0x7fff)) << 13, sign = both(h, ints(0x8000)) << 16;
  const I full = bits >= ints(0x7c00 << 13);
  const I value = as_bits(as_float(bits) * set(0x1p112f));
  return as_float(either(sign, either(both(full, either(bits, ints(0x7f800000))), both(~full, value))));
}
static inline V halves(const u16* p, i64 n) {
  u16 some[8] = {};
  std::memcpy(some, p, (n < 8 ? n : 8) * sizeof(u16));
  u16 __attribute__((vector_size(16))) v;
  std::memcpy(&v, some, sizeof v);
  return wide_halves(__builtin_convertvector(v, I));
}
static inline float half(u16 h) { return wide_halves(ints(h))[0]; }
static inline V spread(V v, I lanes) {  // a swizzle gives 0 for a byte beyond its 16, so each half looks into both
  const auto half = [&](v128_t at) {
    const v128_t from = wasm_i32x4_add(wasm_i32x4_mul(at, wasm_i32x4_splat(0x04040404)), wasm_i32x4_splat(0x03020100));
    return wasm_v128_or(wasm_i8x16_swizzle(low(v), from), wasm_i8x16_swizzle(high(v), wasm_i8x16_sub(from, wasm_i8x16_splat(16))));
  };
  return whole(half(low_bits(lanes)), half(high_bits(lanes)));
}
static inline V floats(I v) { return __builtin_convertvector(v, V); }
static inline I lanes() { return I{0, 1, 2, 3, 4, 5, 6, 7}; }
static inline I right(I v, int bits) { return (I)((U)v >> bits); }
static inline I minus(I a, I b) { return a - b; }
static inline I bytes8(i8 b) { return whole_bits(wasm_i8x16_splat(b), wasm_i8x16_splat(b)); }
static inline I dots(I sum, I a, I b) {
  const auto fours = [](v128_t x, v128_t y) {
    const v128_t first = wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_extmul_low_i8x16(x, y));
    const v128_t last = wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_extmul_high_i8x16(x, y));
    return wasm_i32x4_add(wasm_i32x4_shuffle(first, last, 0, 2, 4, 6), wasm_i32x4_shuffle(first, last, 1, 3, 5, 7));
  };
  return plus(sum, whole_bits(fours(low_bits(a), low_bits(b)), fours(high_bits(a), high_bits(b))));
}
static inline I signed_dots(I w, I x) { return dots(no_bits(), w, x); }  // exact for signed bytes, in AVX2's order
// The largest of 32 numbers without their signs, as bits.
static inline int largest_bits(const float* x) {
  I most = no_bits();
  for (int i = 0; i < 4; i++) {
    const I bits = both(load_bits(x + 8 * i), ints(0x7fffffff)), more = bits > most;
    most = either(both(more, bits), both(~more, most));
  }
  int top = 0;
  for (int i = 0; i < 8; i++) top = most[i] > top ? most[i] : top;
  return top;
}
// Round 32 numbers times `by` to bytes.
static inline void to_bytes(const float* x, float by, i8* bytes) {
  for (int i = 0; i < 4; i++) {
    const Bytes8 eight = __builtin_convertvector(__builtin_convertvector(nearest(load(x + 8 * i) * set(by)), I), Bytes8);
    std::memcpy(bytes + 8 * i, &eight, sizeof eight);
  }
}
