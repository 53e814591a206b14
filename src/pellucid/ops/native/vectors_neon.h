// Vectors of 8 floats for arm64, each two registers of 4, so that a sum is added in the order of AVX2 and has its bits.
//
// Where x86 and NEON differ, NEON does as x86: of a NaN and a number, `max` and `min` give the second operand. Only the sign of a NaN that
// arithmetic makes is the processor's own.
#pragma once
#include <arm_neon.h>

struct V {
  float32x4_t a, b;
};
struct I {
  int32x4_t a, b;
};
using Eight = V;
constexpr i64 LANES = 8;
static inline V operator+(V x, V y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
static inline V operator-(V x, V y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
static inline V operator*(V x, V y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
static inline V operator/(V x, V y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
static inline V set(float f) { return {vdupq_n_f32(f), vdupq_n_f32(f)}; }
static inline I ints(int i) { return {vdupq_n_s32(i), vdupq_n_s32(i)}; }
static inline V as_float(I v) { return {vreinterpretq_f32_s32(v.a), vreinterpretq_f32_s32(v.b)}; }
static inline I as_bits(V v) { return {vreinterpretq_s32_f32(v.a), vreinterpretq_s32_f32(v.b)}; }
static inline uint32x4_t plain(int32x4_t v) { return vreinterpretq_u32_s32(v); }
static inline I ints(uint32x4_t a, uint32x4_t b) { return {vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b)}; }
static inline V load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline V load(const u16* p) {  // zeros below, the number above
  const uint16x8_t v = vld1q_u16(p), zero = vdupq_n_u16(0);
  return {vreinterpretq_f32_u16(vzip1q_u16(zero, v)), vreinterpretq_f32_u16(vzip2q_u16(zero, v))};
}
static inline void store(float* p, V v) { vst1q_f32(p, v.a), vst1q_f32(p + 4, v.b); }
static inline I load_bits(const void* p) { return {vreinterpretq_s32_u8(vld1q_u8((const u8*)p)), vreinterpretq_s32_u8(vld1q_u8((const u8*)p + 16))}; }
static inline void store_bits(void* p, I v) { vst1q_u8((u8*)p, vreinterpretq_u8_s32(v.a)), vst1q_u8((u8*)p + 16, vreinterpretq_u8_s32(v.b)); }
static inline V fma(V a, V b, V c) { return {vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b)}; }
static inline V pick(uint32x4_t a, uint32x4_t b, V yes, V no) { return {vbslq_f32(a, yes.a, no.a), vbslq_f32(b, yes.b, no.b)}; }
static inline V max(V a, V b) { return pick(vcgtq_f32(a.a, b.a), vcgtq_f32(a.b, b.b), a, b); }
static inline V min(V a, V b) { return pick(vcltq_f32(a.a, b.a), vcltq_f32(a.b, b.b), a, b); }
static inline V where(V a, V below, V yes, V no) { return pick(vcltq_f32(a.a, below.a), vcltq_f32(a.b, below.b), yes, no); }
static inline V root(V a) { return {vsqrtq_f32(a.a), vsqrtq_f32(a.b)}; }
static inline V nearest(V a) { return {vrndnq_f32(a.a), vrndnq_f32(a.b)}; }
static inline V power_of_two(V n) {
  const int32x4_t bias = vdupq_n_s32(127);
  return as_float({vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.a), bias), 23), vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.b), bias), 23)});
}
static inline bool any_nan(V a) { return vminvq_u32(vandq_u32(vceqq_f32(a.a, a.a), vceqq_f32(a.b, a.b))) == 0; }
static inline I up16(I v) { return {vshlq_n_s32(v.a, 16), vshlq_n_s32(v.b, 16)}; }
static inline I down16(I v) { return ints(vshrq_n_u32(plain(v.a), 16), vshrq_n_u32(plain(v.b), 16)); }
static inline I both(I a, I b) { return {vandq_s32(a.a, b.a), vandq_s32(a.b, b.b)}; }
static inline I either(I a, I b) { return {vorrq_s32(a.a, b.a), vorrq_s32(a.b, b.b)}; }
static inline I plus(I a, I b) { return {vaddq_s32(a.a, b.a), vaddq_s32(a.b, b.b)}; }
static inline I minus(I a, I b) { return {vsubq_s32(a.a, b.a), vsubq_s32(a.b, b.b)}; }
static inline I pick_nan(V v, I nan, I other) {
  return {vbslq_s32(vceqq_f32(v.a, v.a), other.a, nan.a), vbslq_s32(vceqq_f32(v.b, v.b), other.b, nan.b)};
}
static inline void store_low(u16* p, I v) { vst1q_u16(p, vcombine_u16(vmovn_u32(plain(v.a)), vmovn_u32(plain(v.b)))); }

// ---- sums across lanes

static inline float total(V a) {  // (l0 + l2) + (l1 + l3) of l = the first four + the last four
  const float32x4_t h = vaddq_f32(a.a, a.b);
  const float32x2_t g = vadd_f32(vget_low_f32(h), vget_high_f32(h));
  return vget_lane_f32(vpadd_f32(g, g), 0);
}
// Return the totals of four vectors, with the additions of `total`.
static inline float32x4_t four_totals(V p, V q, V r, V s) {
  const auto halved = [](V p, V q) {
    const float64x2_t a = vreinterpretq_f64_f32(vaddq_f32(p.a, p.b)), b = vreinterpretq_f64_f32(vaddq_f32(q.a, q.b));
    return vaddq_f32(vreinterpretq_f32_f64(vtrn1q_f64(a, b)), vreinterpretq_f32_f64(vtrn2q_f64(a, b)));
  };
  return vpaddq_f32(halved(p, q), halved(r, s));
}
// Return the totals of N vectors, lane l that of v[l].
template <int N>
[[gnu::always_inline]] static inline V totals(const V* v) {
  static_assert(N <= LANES);
  const auto at = [&](int i) { return v[i < N ? i : 0]; };
  return {four_totals(at(0), at(1), at(2), at(3)), four_totals(at(4), at(5), at(6), at(7))};
}
// Sum eight vectors, each to one lane of the result, in the order of AVX2's horizontal additions.
static inline Eight eight(const V* v) {
  const auto four = [](const V* v) {
    return vaddq_f32(vpaddq_f32(vpaddq_f32(v[0].a, v[1].a), vpaddq_f32(v[2].a, v[3].a)), vpaddq_f32(vpaddq_f32(v[0].b, v[1].b), vpaddq_f32(v[2].b, v[3].b)));
  };
  return {four(v), four(v + 4)};
}
static inline Eight set8(float f) { return set(f); }
static inline void store8(float* p, Eight v) { store(p, v); }
static inline void transpose4(float32x4_t p, float32x4_t q, float32x4_t r, float32x4_t s, float* to, const i64* at) {
  const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(p, q)), b = vreinterpretq_f64_f32(vtrn2q_f32(p, q));
  const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r, s)), d = vreinterpretq_f64_f32(vtrn2q_f32(r, s));
  vst1q_f32(to + at[0], vreinterpretq_f32_f64(vtrn1q_f64(a, c))), vst1q_f32(to + at[1], vreinterpretq_f32_f64(vtrn1q_f64(b, d)));
  vst1q_f32(to + at[2], vreinterpretq_f32_f64(vtrn2q_f64(a, c))), vst1q_f32(to + at[3], vreinterpretq_f32_f64(vtrn2q_f64(b, d)));
}
// Transpose eight vectors of eight: to[at[j] + i] = v[i][j].
static inline void transpose(const Eight* v, float* to, const i64* at) {
  for (int i = 0; i < 8; i += 4) {
    transpose4(v[i].a, v[i + 1].a, v[i + 2].a, v[i + 3].a, to + i, at);
    transpose4(v[i].b, v[i + 1].b, v[i + 2].b, v[i + 3].b, to + i, at + 4);
  }
}
static inline void halves(V v, Eight* out) { out[0] = v; }

// ---- of weights in blocks: bytes, four in each lane, and half-precision numbers

static inline I no_bits() { return ints(0); }
static inline float half(u16 h) {
  __fp16 f;
  std::memcpy(&f, &h, 2);
  return (float)f;
}
static inline V halves(const u16* p, i64 n) {
  u16 some[8] = {};
  if (n < 8) std::memcpy(some, p, n * sizeof(u16)), p = some;
  const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_f32_f16(vget_high_f16(h))};
}
static inline V spread(V v, I lanes) {  // lane l of the result is lane lanes[l] of v
  const uint8x16x2_t table = {{vreinterpretq_u8_f32(v.a), vreinterpretq_u8_f32(v.b)}};
  const auto bytes = [](int32x4_t l) { return vreinterpretq_u8_s32(vmlaq_s32(vdupq_n_s32(0x03020100), l, vdupq_n_s32(0x04040404))); };
  return {vreinterpretq_f32_u8(vqtbl2q_u8(table, bytes(lanes.a))), vreinterpretq_f32_u8(vqtbl2q_u8(table, bytes(lanes.b)))};
}
static inline V floats(I v) { return {vcvtq_f32_s32(v.a), vcvtq_f32_s32(v.b)}; }
static inline I lanes() {
  alignas(16) const int all[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  return load_bits(all);
}
static inline I right(I v, int bits) { return ints(vshlq_u32(plain(v.a), vdupq_n_s32(-bits)), vshlq_u32(plain(v.b), vdupq_n_s32(-bits))); }
static inline I bytes8(i8 b) { return {vreinterpretq_s32_s8(vdupq_n_s8(b)), vreinterpretq_s32_s8(vdupq_n_s8(b))}; }
static inline int32x4_t add_bytes(int32x4_t sum, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, w, x);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_s8(vget_high_s8(w), vget_high_s8(x));
  return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}
// Add to each lane of sum the products of its four bytes w and x, both signed.
static inline I dots(I sum, I w, I x) {
  return {add_bytes(sum.a, vreinterpretq_s8_s32(w.a), vreinterpretq_s8_s32(x.a)), add_bytes(sum.b, vreinterpretq_s8_s32(w.b), vreinterpretq_s8_s32(x.b))};
}
static inline I signed_dots(I w, I x) { return dots(no_bits(), w, x); }
// Return the largest of 32 numbers without their signs, compared as bits.
static inline int largest_bits(const float* x) {
  int32x4_t most = vdupq_n_s32(0);
  for (int i = 0; i < 32; i += 4) most = vmaxq_s32(most, vandq_s32(vreinterpretq_s32_f32(vld1q_f32(x + i)), vdupq_n_s32(0x7fffffff)));
  return vmaxvq_s32(most);
}
// Round 32 numbers times `by`, which are no larger than 127, to bytes.
static inline void to_bytes(const float* x, float by, i8* bytes) {
  for (int i = 0; i < 32; i += 8) {
    const auto words = [&](const float* x) { return vqmovn_s32(vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x), vdupq_n_f32(by)))); };
    vst1_s8(bytes + i, vqmovn_s16(vcombine_s16(words(x + i), words(x + i + 4))));
  }
}

// ---- of draws: doubles, half as many

struct D {
  float64x2_t a, b;
};
constexpr int HALF = 4;
static inline D operator+(D x, D y) { return {vaddq_f64(x.a, y.a), vaddq_f64(x.b, y.b)}; }
static inline D operator-(D x, D y) { return {vsubq_f64(x.a, y.a), vsubq_f64(x.b, y.b)}; }
static inline D operator*(D x, D y) { return {vmulq_f64(x.a, y.a), vmulq_f64(x.b, y.b)}; }
static inline D twice(double d) { return {vdupq_n_f64(d), vdupq_n_f64(d)}; }
static inline D widened(const float* p) { return {vcvt_f64_f32(vld1_f32(p)), vcvt_f64_f32(vld1_f32(p + 2))}; }
static inline D fma(D a, D b, D c) { return {vfmaq_f64(c.a, a.a, b.a), vfmaq_f64(c.b, a.b, b.b)}; }
static inline D most(D a, D b) { return {vbslq_f64(vcgtq_f64(a.a, b.a), a.a, b.a), vbslq_f64(vcgtq_f64(a.b, b.b), a.b, b.b)}; }
static inline D nearest(D a) { return {vrndnq_f64(a.a), vrndnq_f64(a.b)}; }
static inline D power_of_two(D n) {
  const auto shifted = [](float64x2_t n) { return vreinterpretq_f64_s64(vshlq_n_s64(vreinterpretq_s64_f64(n), 52)); };
  const D biased = n + twice(6755399441055744.0 + 1023);
  return {shifted(biased.a), shifted(biased.b)};
}
static inline void store(double* p, D v) { vst1q_f64(p, v.a), vst1q_f64(p + 2, v.b); }
static inline void cut(int* p, V v) { vst1q_s32(p, vcvtq_s32_f32(v.a)), vst1q_s32(p + 4, vcvtq_s32_f32(v.b)); }
static inline unsigned inside(V v, V low, V high) {  // a bit for each lane in [low, high]
  alignas(16) const uint32_t bits[4] = {1, 2, 4, 8};
  const auto four = [&](float32x4_t v, float32x4_t low, float32x4_t high) {
    return vaddvq_u32(vandq_u32(vandq_u32(vcgeq_f32(v, low), vcleq_f32(v, high)), vld1q_u32(bits)));
  };
  return four(v.a, low.a, high.a) | four(v.b, low.b, high.b) << 4;
}
static inline void places(i64* to, i64 i, unsigned bits) {
  for (int j = 0; j < LANES; j++) *to = i + j, to += bits >> j & 1;
}

// Prefetch a cache line, into the first cache or the second. In assembler: see vectors_x86.h.
static inline void prefetch_l1(const void* p) { asm volatile("prfm pldl1keep, %a0" ::"p"(p)); }
static inline void prefetch_l2(const void* p) { asm volatile("prfm pldl2keep, %a0" ::"p"(p)); }
static inline void relax() { asm volatile("isb"); }  // in a loop that waits: `yield` does nothing on most cores
// Keep in registers: else GCC loads them again for every row of w.
static inline void kept(V& a, V& b) { asm("" : "+w"(a.a), "+w"(a.b), "+w"(b.a), "+w"(b.b)); }
static inline void kept(I& v) { asm("" : "+w"(v.a), "+w"(v.b)); }
