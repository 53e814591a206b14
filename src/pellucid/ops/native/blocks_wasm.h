// Vectors for weights in blocks (blocks.h) in WebAssembly: 32 bytes, eight sums of four products each, in the order of AVX2.
//
// A product of two signed bytes is exact here, so no operand is made positive first: `magnitude` and `signed_as` return theirs as it is.
#pragma once

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
static inline I magnitude(I bytes) { return bytes; }
static inline I signed_as(I x, I) { return x; }
static inline I dots(I sum, I a, I b) {
  const auto fours = [](v128_t x, v128_t y) {
    const v128_t first = wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_extmul_low_i8x16(x, y));
    const v128_t last = wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_extmul_high_i8x16(x, y));
    return wasm_i32x4_add(wasm_i32x4_shuffle(first, last, 0, 2, 4, 6), wasm_i32x4_shuffle(first, last, 1, 3, 5, 7));
  };
  return plus(sum, whole_bits(fours(low_bits(a), low_bits(b)), fours(high_bits(a), high_bits(b))));
}
constexpr int BLOCK_TILE = 4;

// Return the largest of 32 numbers without their signs, as bits.
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
// Round 32 numbers times `by`, which are no larger than 127, to bytes.
static inline void to_bytes(const float* x, float by, i8* bytes) {
  for (int i = 0; i < 4; i++) {
    const Bytes8 eight = __builtin_convertvector(__builtin_convertvector(nearest(load(x + 8 * i) * set(by)), I), Bytes8);
    std::memcpy(bytes + 8 * i, &eight, sizeof eight);
  }
}
