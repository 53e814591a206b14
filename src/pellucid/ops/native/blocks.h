// Products and rows of weights in blocks of 32 with a half-precision scale each: int8, or int4 with two in a byte, the first one low.
//
// The one idea: x is rounded to int8 with a scale for each of its blocks too. So a block's product is an exact sum of integers, and only
// these sums, times two scales, are added in float, in an order set by k alone: a row has the same bits alone and among many.
// |x - rounded x| is at most half its block's scale, largest |x| / 254. A block of x that is not finite has the scale NaN.
#pragma once
#include "int8_tiles.h"

constexpr int BLOCK_TILE = LANES == 16 ? 8 : 4;
constexpr i64 GROUP = 32, REGISTER = 4 * LANES;  // GROUP: numbers with one scale.  REGISTER: its bytes
static inline I some_bytes(const u8* p, i64 n) {
  if (n >= REGISTER) return load_bits(p);
  u8 some[REGISTER] = {};
  std::memcpy(some, p, n);
  return load_bits(some);
}

// ---- x in blocks

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
  Rounded(i64 k, i64 rows, i64 more = 0) : k(k), rows(rows) {  // more: floats that follow
    blocks = parts(k, GROUP), registers = parts(k, WEIGHTS);
    stride = registers * STRIDE + (blocks + 2 * LANES) / LANES * REGISTER;
    buffer = (i8*)scratch(rows * stride / 4 + 1 + more);
  }
  // Return where the scale of block b of each LANES lies.
  static constexpr i64 place(i64 b) { return BYTE_TILES ? b / 16 * 16 + b % 4 * 4 + b % 16 / 4 : b; }
  i8* codes(i64 r) const { return buffer + r * stride; }
  float* scales(i64 r) const { return (float*)(codes(r) + registers * STRIDE); }
  static constexpr i64 low_half(i64 b) { return b * GROUP / WEIGHTS * STRIDE + b * GROUP % WEIGHTS / 2; }
#if defined(__AMX_INT8__)
  float scale(i64 r, i64 b) const { return scales(r)[place(b)]; }
  Eight block(i64 r, i64 b) const {  // its codes, of int4 weights the even numbers' first
    if constexpr (BITS == 8) return load8((const float*)(codes(r) + b * GROUP));
    else return two_quads(codes(r) + low_half(b), codes(r) + low_half(b) + REGISTER);
  }
#endif
  template <class T>
  void fill(i64 r, const T* x) {
    i8* to = codes(r);
    std::memset(to, 0, stride);
    for (i64 b = 0; b < blocks; b++) {
      alignas(64) float f[GROUP] = {};
      alignas(32) i8 c[GROUP];
      steps(0, k - b * GROUP < GROUP ? k - b * GROUP : GROUP, [&](i64 i, i64 n) { store(f + i, load(x + b * GROUP + i, n), n); });
      scales(r)[place(b)] = round_block(f, c);
      if constexpr (BITS == 8) std::memcpy(to + b * GROUP, c, GROUP);
      else {
        i8 even[GROUP / 2], odd[GROUP / 2];
        for (int i = 0; i < GROUP / 2; i++) even[i] = c[2 * i], odd[i] = c[2 * i + 1];
        std::memcpy(to + low_half(b), even, GROUP / 2), std::memcpy(to + low_half(b) + REGISTER, odd, GROUP / 2);
      }
    }
    if constexpr (BITS == 4)
      for (i8* p = to; p < to + registers * STRIDE; p += STRIDE)
        store_bits(p + 2 * REGISTER, minus(no_bits(), dots(dots(no_bits(), bytes8(8), load_bits(p)), bytes8(8), load_bits(p + REGISTER))));
  }
};

template <int BITS>
static inline I product(I w, const i8* x) {
  if constexpr (BITS == 8) return signed_dots(w, load_bits(x));
  const I low = bytes8(15);
  const I start = load_bits(x + 2 * REGISTER);
  return dots(dots(start, both(w, low), load_bits(x)), both(right(w, 4), low), load_bits(x + REGISTER));
}

// Multiply one row of w by R rows of x from `row` on, LANES blocks at a time.
#if defined(__AMX_INT8__)
// A block's sum is made whole before it is a float, and block b % 16 has the lane `place`: tiles add these lanes one after another.
template <int BITS, int R>
static inline void dot(const u8* w, const u16* scales, const Rounded<BITS>& x, i64 row, float* out) {
  const i64 bytes = (x.k * BITS + 7) / 8;
  V sum[R];
  for (int r = 0; r < R; r++) sum[r] = set(0.f);
  for (i64 b = 0, at = 0; b < x.blocks; b += LANES) {
    const V own = placed(halves(scales + b, x.blocks - b));
    I first[R], low[R];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {  // four blocks
      I some[R];
      for (int r = 0; r < R; r++) some[r] = no_bits();
      if (at * REGISTER < bytes) {
        ahead(w + at * REGISTER);
        const I packed = some_bytes(w + at * REGISTER, bytes - at * REGISTER);
        for (int r = 0; r < R; r++) some[r] = product<BITS>(packed, x.codes(row + r) + at * Rounded<BITS>::STRIDE);
      }
      at++;
      if constexpr (BITS == 8) {
        I more[R];
        for (int r = 0; r < R; r++) more[r] = no_bits();
        if (at * REGISTER < bytes) {
          const I packed = some_bytes(w + at * REGISTER, bytes - at * REGISTER);
          ahead(w + at * REGISTER);
          for (int r = 0; r < R; r++) more[r] = product<BITS>(packed, x.codes(row + r) + at * Rounded<BITS>::STRIDE);
        }
        at++;
        for (int r = 0; r < R; r++) some[r] = quads(some[r], more[r]);
      }
      for (int r = 0; r < R; r++) {
        if (v == 0 || v == 2) first[r] = some[r];
        if (v == 1) low[r] = words(first[r], some[r]);
        if (v == 3) sum[r] = fma(floats(twos(low[r], words(first[r], some[r]))), own * load(x.scales(row + r) + b), sum[r]);
      }
    }
  }
  for (int r = 0; r < R; r++) out[r] = total(sum[r]);
}
#else
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
#endif

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

#if defined(__AMX_INT8__)
// As many rows cost in vectors what sixteen cost in tiles. A last group as small is left to `dot`.
template <int BITS>
constexpr i64 FEW_ROWS = BITS == 8 ? 4 : 7;
template <int BITS, class T>
static void byte_linear(const BlockLinear<T>& a, i64 chunk, Work& work) {
  using X = Rounded<BITS>;
  const i64 last = a.rows % HEIGHT, tiled = last <= FEW_ROWS<BITS> ? a.rows - last : a.rows;
  ByteRoom room(tiled, parts(a.k, GROUP));
  X x(a.k, a.rows, room.floats());
  room.lie_at(x.codes(a.rows));
  for (i64 r = 0; r < a.rows; r++) x.fill(r, a.x + r * a.k);
  weave_blocks(x, tiled, room.woven);
  for (i64 p; (p = work.next()) >= 0;) {
    const i64 from = p * chunk, to = from + chunk < a.n ? from + chunk : a.n;
    byte_tiles<BITS>(a, x, room, from, to);
    block_tiles(a, x, tiled, from, to);
  }
}
#endif

template <int BITS, class T>
static i64 block_chunk(const BlockLinear<T>& a) {
  const i64 few = rows_a_chunk(a.n, (a.k * BITS + 7) / 8);
  return BYTE_TILES ? parts(few, HEIGHT) * HEIGHT : few;
}
template <int BITS, class T>
static i64 block_linear_pieces(const BlockLinear<T>& a) {
  return parts(a.n, block_chunk<BITS>(a));
}
template <int BITS, class T>
static void block_linear(const BlockLinear<T>& a, Work& work) {
  const i64 chunk = block_chunk<BITS>(a);
#if defined(__AMX_INT8__)
  if (a.rows > FEW_ROWS<BITS>) return byte_linear<BITS>(a, chunk, work);
#endif
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
