// Vectors of 8 (AVX2) or 16 (AVX-512) floats on x86. What both sets do with registers of 8 stands at the end.
#pragma once
#include <immintrin.h>

#if defined(__AVX512F__)
using V = __m512;
using I = __m512i;
constexpr i64 LANES = 16;
static inline V set(float f) { return _mm512_set1_ps(f); }
static inline I ints(int i) { return _mm512_set1_epi32(i); }
static inline V load(const float* p) { return _mm512_loadu_ps(p); }
static inline V load(const u16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
static inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V max(V a, V b) { return _mm512_max_ps(a, b); }
static inline V min(V a, V b) { return _mm512_min_ps(a, b); }
static inline V root(V a) { return _mm512_sqrt_ps(a); }
static inline V nearest(V a) { return _mm512_roundscale_ps(a, 0); }
static inline V power_of_two(V n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), ints(127)), 23)); }
static inline V where(V a, V below, V yes, V no) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, below, _CMP_LT_OQ), no, yes); }
static inline bool any_nan(V a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
static inline __m256 fold(V a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)));
}
static inline I load_bits(const void* p) { return _mm512_loadu_si512(p); }
static inline void store_bits(void* p, I v) { _mm512_storeu_si512(p, v); }
static inline I up16(I v) { return _mm512_slli_epi32(v, 16); }
static inline I down16(I v) { return _mm512_srli_epi32(v, 16); }
static inline I both(I a, I b) { return _mm512_and_si512(a, b); }
static inline I either(I a, I b) { return _mm512_or_si512(a, b); }
static inline I plus(I a, I b) { return _mm512_add_epi32(a, b); }
static inline V as_float(I v) { return _mm512_castsi512_ps(v); }
static inline I as_bits(V v) { return _mm512_castps_si512(v); }
static inline I pick_nan(V v, I nan, I other) { return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), other, nan); }
static inline void store_low(u16* p, I v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(v)); }

// of weights in blocks: bytes, four in each lane, and half-precision numbers
static inline I no_bits() { return _mm512_setzero_si512(); }
static inline V halves(const u16* p, i64 n) {  // fp16
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(n >= 16 ? 0xffff : (1u << n) - 1, p));
}
static inline V spread(V v, I lanes) { return _mm512_permutexvar_ps(lanes, v); }
static inline V floats(I v) { return _mm512_cvtepi32_ps(v); }
static inline I lanes() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }
static inline I right(I v, int bits) { return _mm512_srli_epi32(v, bits); }
static inline I minus(I a, I b) { return _mm512_sub_epi32(a, b); }
static inline I bytes8(i8 b) { return _mm512_set1_epi8(b); }
static inline I magnitude(I bytes) { return _mm512_abs_epi8(bytes); }
static inline I signed_as(I x, I w) { return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), no_bits(), x); }
// Add to each lane of sum the products of its four bytes u, 0 to 128, and signed bytes s.
static inline I dots(I sum, I u, I s) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sum, u, s);
#else
  return plus(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1)));
#endif
}
// Add what belongs to one block. quads: of two vectors of two blocks, in eight lanes each, to one of four blocks in four lanes each.
// words, then twos: of four such vectors to one of sixteen blocks. placed: numbers of sixteen blocks, in the order that this leaves.
static inline I quads(I p, I q) { return plus(_mm512_shuffle_i32x4(p, q, 0x88), _mm512_shuffle_i32x4(p, q, 0xdd)); }
static inline I words(I p, I q) { return plus(_mm512_unpacklo_epi32(p, q), _mm512_unpackhi_epi32(p, q)); }
static inline I twos(I p, I q) { return plus(_mm512_unpacklo_epi64(p, q), _mm512_unpackhi_epi64(p, q)); }
static inline V placed(V v) { return spread(v, _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0)); }

// of draws: doubles, half as many
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
using V = __m256;
using I = __m256i;
constexpr i64 LANES = 8;
static inline V set(float f) { return _mm256_set1_ps(f); }
static inline I ints(int i) { return _mm256_set1_epi32(i); }
static inline V load(const float* p) { return _mm256_loadu_ps(p); }
static inline V load(const u16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
static inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
static inline V max(V a, V b) { return _mm256_max_ps(a, b); }
static inline V min(V a, V b) { return _mm256_min_ps(a, b); }
static inline V root(V a) { return _mm256_sqrt_ps(a); }
static inline V nearest(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline V power_of_two(V n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), ints(127)), 23)); }
static inline V where(V a, V below, V yes, V no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, below, _CMP_LT_OQ)); }
static inline bool any_nan(V a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
static inline __m256 fold(V a) { return a; }
static inline I load_bits(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline void store_bits(void* p, I v) { _mm256_storeu_si256((__m256i*)p, v); }
static inline I up16(I v) { return _mm256_slli_epi32(v, 16); }
static inline I down16(I v) { return _mm256_srli_epi32(v, 16); }
static inline I both(I a, I b) { return _mm256_and_si256(a, b); }
static inline I either(I a, I b) { return _mm256_or_si256(a, b); }
static inline I plus(I a, I b) { return _mm256_add_epi32(a, b); }
static inline V as_float(I v) { return _mm256_castsi256_ps(v); }
static inline I as_bits(V v) { return _mm256_castps_si256(v); }
static inline I pick_nan(V v, I nan, I other) {
  return _mm256_blendv_epi8(other, nan, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
static inline void store_low(u16* p, I v) {
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08)));
}

// of weights in blocks: bytes, four in each lane, and half-precision numbers
static inline I no_bits() { return _mm256_setzero_si256(); }
static inline V halves(const u16* p, i64 n) {
  u16 some[8] = {};
  if (n < 8) std::memcpy(some, p, n * sizeof(u16)), p = some;
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}
static inline V spread(V v, I lanes) { return _mm256_permutevar8x32_ps(v, lanes); }
static inline V floats(I v) { return _mm256_cvtepi32_ps(v); }
static inline I lanes() { return _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0); }
static inline I right(I v, int bits) { return _mm256_srli_epi32(v, bits); }
static inline I minus(I a, I b) { return _mm256_sub_epi32(a, b); }
static inline I bytes8(i8 b) { return _mm256_set1_epi8(b); }
static inline I magnitude(I bytes) { return _mm256_abs_epi8(bytes); }
static inline I signed_as(I x, I w) { return _mm256_sign_epi8(x, w); }
static inline I dots(I sum, I u, I s) { return plus(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1))); }

// of draws: doubles, half as many
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

using Eight = __m256;
static inline Eight set8(float f) { return _mm256_set1_ps(f); }
static inline void store8(float* p, Eight v) { _mm256_storeu_ps(p, v); }
static inline Eight load8(const float* p) { return _mm256_loadu_ps(p); }
static inline Eight two_quads(const void* low, const void* high) { return _mm256_castsi256_ps(_mm256_loadu2_m128i((const __m128i*)high, (const __m128i*)low)); }
static inline float total(V a) {
  __m256 f = fold(a);
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
// Return the totals of N vectors, lane l that of v[l], with the additions of `total`. Every step adds two vectors.
template <int N>
[[gnu::always_inline]] static inline V totals(const V* v) {
  static_assert(N <= LANES);
  V u[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) {  // the order in which the shuffles below end
    const int lane = 4 * (i % (LANES / 4)) + i / (LANES / 4);
    u[i] = v[lane < N ? lane : 0];
  }
  const auto meet = [&](int count, auto low, auto high) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) u[i] = low(u[2 * i], u[2 * i + 1]) + high(u[2 * i], u[2 * i + 1]);
  };
#if defined(__AVX512F__)
  meet(8, [](V p, V q) { return _mm512_shuffle_f32x4(p, q, 0x44); }, [](V p, V q) { return _mm512_shuffle_f32x4(p, q, 0xee); });
  meet(4, [](V p, V q) { return _mm512_shuffle_f32x4(p, q, 0x88); }, [](V p, V q) { return _mm512_shuffle_f32x4(p, q, 0xdd); });
  meet(2, [](V p, V q) { return _mm512_shuffle_ps(p, q, 0x44); }, [](V p, V q) { return _mm512_shuffle_ps(p, q, 0xee); });
  meet(1, [](V p, V q) { return _mm512_shuffle_ps(p, q, 0x88); }, [](V p, V q) { return _mm512_shuffle_ps(p, q, 0xdd); });
#else
  meet(4, [](V p, V q) { return _mm256_permute2f128_ps(p, q, 0x20); }, [](V p, V q) { return _mm256_permute2f128_ps(p, q, 0x31); });
  meet(2, [](V p, V q) { return _mm256_shuffle_ps(p, q, 0x44); }, [](V p, V q) { return _mm256_shuffle_ps(p, q, 0xee); });
  meet(1, [](V p, V q) { return _mm256_shuffle_ps(p, q, 0x88); }, [](V p, V q) { return _mm256_shuffle_ps(p, q, 0xdd); });
#endif
  return u[0];
}
// Sum eight vectors, each to one lane of the result, all in the same order.
static inline Eight eight(const V* a) {
  const Eight p = _mm256_hadd_ps(_mm256_hadd_ps(fold(a[0]), fold(a[1])), _mm256_hadd_ps(fold(a[2]), fold(a[3])));
  const Eight q = _mm256_hadd_ps(_mm256_hadd_ps(fold(a[4]), fold(a[5])), _mm256_hadd_ps(fold(a[6]), fold(a[7])));
  return _mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
}
// Transpose eight vectors of eight: to[at[j] + i] = v[i][j].
static inline void transpose(const Eight* v, float* to, const i64* at) {
  Eight a[8], b[8];
  for (int i = 0; i < 8; i += 2) a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]), a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
    }
  for (int j = 0; j < 4; j++) {
    _mm256_storeu_ps(to + at[j], _mm256_permute2f128_ps(b[j], b[j + 4], 0x20));
    _mm256_storeu_ps(to + at[j + 4], _mm256_permute2f128_ps(b[j], b[j + 4], 0x31));
  }
}
static inline void halves(V v, Eight* out) {
#if defined(__AVX512F__)
  out[0] = _mm512_castps512_ps256(v), out[8] = _mm512_extractf32x8_ps(v, 1);
#else
  out[0] = v;
#endif
}

// Return in each lane the sum of the products of its four signed bytes w and x.
static inline I signed_dots(I w, I x) { return dots(no_bits(), magnitude(w), signed_as(x, w)); }
static inline float half(u16 h) { return _cvtsh_ss(h); }  // from fp16
// Return the largest of 32 numbers without their signs, compared as bits.
static inline int largest_bits(const float* x) {
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < 4; i++)
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_loadu_si256((const __m256i*)(x + 8 * i)), _mm256_set1_epi32(0x7fffffff)));
  __m128i top = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1)));
}
// Round 32 numbers times `by`, which are no larger than 127, to bytes.
static inline void to_bytes(const float* x, float by, i8* bytes) {
  __m256i integers[4];
  for (int i = 0; i < 4; i++) integers[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(by)));
  const __m256i low = _mm256_packs_epi32(integers[0], integers[1]), high = _mm256_packs_epi32(integers[2], integers[3]);
  const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);  // the pack instructions work on halves of a register
  _mm256_storeu_si256((__m256i*)bytes, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
}

// Prefetch a cache line, into the first cache or the second, or to be written. In assembler: GCC removes a call or a lambda whose only effect
// is a prefetch by a builtin, which costs prompts 3 to 10%.
static inline void prefetch_l1(const void* p) { asm volatile("prefetcht0 %0" ::"m"(*(const char*)p)); }
static inline void prefetch_l2(const void* p) { asm volatile("prefetcht1 %0" ::"m"(*(const char*)p)); }
static inline void prefetch_to_write(const void* p) { asm volatile("prefetchw %0" ::"m"(*(const char*)p)); }
static inline void relax() { _mm_pause(); }  // in a loop that waits
// Keep in registers: else GCC loads them again for every row of w.
static inline void kept(V& a, V& b) { asm("" : "+v"(a), "+v"(b)); }
static inline void kept(I& a) { asm("" : "+v"(a)); }
#if defined(__AVX512BF16__)
#define MULTIPLIES_BF16
static inline V add_dots(V sum, I w, I x) { return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x); }
#endif
