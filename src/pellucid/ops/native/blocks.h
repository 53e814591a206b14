// Products and rows of weights in blocks of 32 with a half-precision scale each: int8, or int4 with two in a byte, the first one low.
//
// The one idea: x is rounded to int8 with a scale for each of its blocks too. So a block's product is an exact sum of integers, and only
// these sums, times two scales, are added in float, in an order set by k alone: a row has the same bits alone and among many.
// |x - rounded x| is at most half its block's scale, largest |x| / 254. A block of x that is not finite has the scale NaN.
#pragma once
#include "linear.h"

using u8 = uint8_t;
using i8 = int8_t;

#if defined(__AVX512F__)
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
// Add to each lane of sum the products of its four unsigned bytes u and signed bytes s. Sums of two products must fit in 16 bits.
static inline I dots(I sum, I u, I s) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sum, u, s);
#else
  return plus(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1)));
#endif
}
constexpr int BLOCK_TILE = 8;
#elif defined(__wasm__)
#include "blocks_wasm.h"
#else
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
constexpr int BLOCK_TILE = 4;
#endif

constexpr i64 GROUP = 32, REGISTER = 4 * LANES;  // GROUP: numbers with one scale.  REGISTER: its bytes
static inline I some_bytes(const u8* p, i64 n) {
  if (n >= REGISTER) return load_bits(p);
  u8 some[REGISTER] = {};
  std::memcpy(some, p, n);
  return load_bits(some);
}

// ---- x in blocks

#if !defined(__wasm__)
static inline float half(u16 h) { return _cvtsh_ss(h); }
// Return the largest of 32 numbers without their signs, as bits.
static inline int largest_bits(const float* x) {
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < 4; i++)
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_loadu_si256((const __m256i*)(x + 8 * i)), _mm256_set1_epi32(0x7fffffff)));
  alignas(32) int each[8], top = 0;
  _mm256_store_si256((__m256i*)each, most);
  for (int bits : each) top = bits > top ? bits : top;
  return top;
}
// Round 32 numbers times `by`, which are no larger than 127, to bytes.
static inline void to_bytes(const float* x, float by, i8* bytes) {
  __m256i integers[4];
  for (int i = 0; i < 4; i++) integers[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(by)));
  const __m256i low = _mm256_packs_epi32(integers[0], integers[1]), high = _mm256_packs_epi32(integers[2], integers[3]);
  const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);  // the pack instructions work on halves of a register
  _mm256_storeu_si256((__m256i*)bytes, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
}
#endif
// Round 32 numbers to codes. Returns their scale.
static inline float round_block(const float* x, i8* codes) {
  const int top = largest_bits(x);  // a NaN is larger than an infinity, an infinity larger than all numbers
  float largest;
  std::memcpy(&largest, &top, 4);
  if (!(largest > 1e-35f && largest < INFINITY)) {  // 127 / a smaller one is infinite
    std::memset(codes, 0, GROUP);
    return largest <= 1e-35f ? 0.f : NAN;
  }
  to_bytes(x, 127.f / largest, codes);
  return largest / 127.f;
}

// Rows of x rounded for `product`. A register of int8 weights is multiplied by REGISTER codes. One of int4 weights is multiplied by the
// codes of its low halves and those of its high halves, starting from -8 times their sums by fours, since a stored int4 is 8 too large.
template <int BITS>
struct Rounded {
  static constexpr i64 STRIDE = BITS == 8 ? REGISTER : 3 * REGISTER, WEIGHTS = REGISTER * 8 / BITS;  // STRIDE: bytes of x for a register of weights.  WEIGHTS: their number
  i64 k, rows, blocks, registers, stride;  // stride: bytes of a row
  i8* buffer;
  Rounded(i64 k, i64 rows) : k(k), rows(rows) {
    blocks = parts(k, GROUP), registers = parts(k, WEIGHTS);
    stride = registers * STRIDE + (blocks + 2 * LANES) / LANES * REGISTER;
    buffer = (i8*)scratch(rows * stride / 4 + 1);
  }
  i8* codes(i64 r) const { return buffer + r * stride; }
  float* scales(i64 r) const { return (float*)(codes(r) + registers * STRIDE); }
  template <class T>
  void fill(i64 r, const T* x) {
    i8* to = codes(r);
    std::memset(to, 0, stride);
    for (i64 b = 0; b < blocks; b++) {
      alignas(64) float f[GROUP] = {};
      alignas(32) i8 c[GROUP];
      steps(0, k - b * GROUP < GROUP ? k - b * GROUP : GROUP, [&](i64 i, i64 n) { store(f + i, load(x + b * GROUP + i, n), n); });
      scales(r)[b] = round_block(f, c);
      if constexpr (BITS == 8) std::memcpy(to + b * GROUP, c, GROUP);
      else {
        i8* place = to + b * GROUP / WEIGHTS * STRIDE + b * GROUP % WEIGHTS / 2;
        for (int i = 0; i < GROUP / 2; i++) place[i] = c[2 * i], place[REGISTER + i] = c[2 * i + 1];
      }
    }
    if constexpr (BITS == 4)
      for (i8* p = to; p < to + registers * STRIDE; p += STRIDE)
        store_bits(p + 2 * REGISTER, minus(no_bits(), dots(dots(no_bits(), bytes8(8), load_bits(p)), bytes8(8), load_bits(p + REGISTER))));
  }
};

template <int BITS>
static inline I product(I w, const i8* x) {
  if constexpr (BITS == 8) return dots(no_bits(), magnitude(w), signed_as(load_bits(x), w));
  const I low = bytes8(15);
  const I start = load_bits(x + 2 * REGISTER);
  return dots(dots(start, both(w, low), load_bits(x)), both(right(w, 4), low), load_bits(x + REGISTER));
}

// Multiply one row of w by R rows of x from `row` on, LANES blocks at a time.
template <int BITS, int R>
static inline void dot(const u8* w, const u16* scales, const Rounded<BITS>& x, i64 row, float* out) {
  constexpr int MANY = (int)(LANES * GROUP / Rounded<BITS>::WEIGHTS), EACH = LANES / MANY;  // MANY: registers of LANES blocks.  EACH: blocks of a register
  const i64 bytes = (x.k * BITS + 7) / 8;
  V sum[R], scale[R];
  for (int r = 0; r < R; r++) sum[r] = set(0.f);
  for (i64 b = 0, at = 0; b < x.blocks; b += LANES) {
    const V own = halves(scales + b, x.blocks - b);
    for (int r = 0; r < R; r++) scale[r] = own * load(x.scales(row + r) + b);
    I from = right(lanes(), BITS == 8 ? 3 : 2);  // the block of each lane's sum: int8 has eight sums a block, int4 four
    for (int v = 0; v < MANY && at * REGISTER < bytes; v++, at++) {
      ahead(w + at * REGISTER);
      const I packed = some_bytes(w + at * REGISTER, bytes - at * REGISTER);
      for (int r = 0; r < R; r++)
        sum[r] = fma(floats(product<BITS>(packed, x.codes(row + r) + at * Rounded<BITS>::STRIDE)), spread(scale[r], from), sum[r]);
      from = plus(from, ints(EACH));
    }
  }
  for (int r = 0; r < R; r++) out[r] = total(sum[r]);
}

template <class T>
struct BlockLinear {
  const u8* w;
  const u16* scales;
  const T* x;
  T* y;
  const T* bias;
  i64 rows, n, k;
  FIELDS(w, scales, x, y, bias, rows, n, k)
};

template <int BITS, class T, int R>
static void block_tile(const BlockLinear<T>& a, const Rounded<BITS>& x, i64 row, i64 from, i64 to) {
  const i64 bytes = (a.k * BITS + 7) / 8;
  float out[R];
  for (i64 j = from; j < to; j++) {
    dot<BITS, R>(a.w + j * bytes, a.scales + j * x.blocks, x, row, out);
    for (int r = 0; r < R; r++) put(a.y + (row + r) * a.n + j, a.bias ? out[r] + get(a.bias + j) : out[r]);
  }
}
// Compute columns [from, to) of the rows from `row` on, tile by tile.
template <int BITS, class T>
static void block_tiles(const BlockLinear<T>& a, const Rounded<BITS>& x, i64 row, i64 from, i64 to) {
  for (; row < a.rows; row += BLOCK_TILE)
    fixed<BLOCK_TILE>(a.rows - row < BLOCK_TILE ? a.rows - row : BLOCK_TILE, [&](auto rows) { block_tile<BITS, T, rows>(a, x, row, from, to); });
}

template <int BITS, class T>
static i64 block_linear_pieces(const BlockLinear<T>& a) {
  return parts(a.n, rows_a_chunk(a.n, (a.k * BITS + 7) / 8));
}
template <int BITS, class T>
static void block_linear(const BlockLinear<T>& a, Work& work) {
  const i64 chunk = rows_a_chunk(a.n, (a.k * BITS + 7) / 8);
  Rounded<BITS> x(a.k, a.rows);
  for (i64 r = 0; r < a.rows; r++) x.fill(r, a.x + r * a.k);
  for (i64 p; (p = work.next()) >= 0;) {
    const i64 from = p * chunk, to = from + chunk < a.n ? from + chunk : a.n;
    const i64 some = a.rows > BLOCK_TILE ? 8 : to - from;
    for (i64 j = from; j < to; j += some) block_tiles(a, x, 0, j, j + some < to ? j + some : to);
  }
}

// ---- embedding: dequantise the rows of a table at ids. An id outside the table gives NaN.
template <class T>
struct BlockEmbedding {
  const u8* table;
  const u16* scales;
  const i64* ids;
  T* y;
  i64 rows, width, count;
  FIELDS(table, scales, ids, y, rows, width, count)
};
template <int BITS, class T>
static i64 block_embedding_pieces(const BlockEmbedding<T>& a) {
  return a.rows;
}
template <int BITS, class T>
static void block_embedding(const BlockEmbedding<T>& a, Work& work) {
  const i64 bytes = (a.width * BITS + 7) / 8, blocks = parts(a.width, GROUP);
  for (i64 r; (r = work.next()) >= 0;) {
    const i64 id = a.ids[r];
    const bool known = id >= 0 && id < a.count;
    for (i64 i = 0; i < a.width; i++) {
      float f = NAN;
      if (known) {
        const u8 code = a.table[id * bytes + i * BITS / 8];
        f = half(a.scales[id * blocks + i / GROUP]) * (float)(BITS == 8 ? (i8)code : (code >> 4 * (i & 1) & 15) - 8);
      }
      put(a.y + r * a.width + i, f);
    }
  }
}
