// Products of bf16 by the processor's tiles (AMX): sixteen rows of w, 32 numbers of each, times the same numbers of up to sixteen rows of x.
//
// The one idea: a tile of w is loaded from the weight as it lies, and x alone is woven, into words of two numbers: word p of each row of a
// group of rows, then word p + 1 of each. A cell is added to in steps of 32 numbers of k and nothing else enters it, so that a row has the
// same bits alone, in a prompt, and in any batch. Sixteen rows cost what one does; many_tiles.h has more than four groups of them.
//
// Which rows of w make a tile is free. They lie `apart`, and the next tile has the row behind each: streams which the processor follows from
// one tile to the next and reads ahead. In rows that follow one another each would end after k numbers.
//     apart = 8     tile 0: rows 0 8 16 24 ...     tile 1: rows 1 9 17 25 ...     ...     tile 7: rows 7 15 23 31 ...
//
// Within a step a tile sums the even numbers' products and the odd ones' by fused multiply-adds from 0, then adds both sums, and that to the
// cell. All is rounded to nearest even in float; numbers below 2^-126 count as 0, of w, of x, of the sums and of y.
#pragma once
#include "walk.h"

constexpr i64 HEIGHT = 16, STEP = 32;  // HEIGHT: the rows of a tile.  STEP: its numbers of k
// Return the words side by side in woven x: one for each row of a group. Of eight or sixteen the last ones may be zeros.
static inline i64 abreast(i64 rows) { return rows == 1 ? 1 : rows <= HEIGHT / 2 ? HEIGHT / 2 : HEIGHT; }
static inline i64 group_size(i64 rows, i64 k) { return parts(k, STEP) * STEP * abreast(rows); }  // in numbers
static inline i64 tile_groups(i64 rows) { return parts(rows, HEIGHT); }
static inline i64 tile_words(i64 rows, i64 k) { return tile_groups(rows) * group_size(rows, k) / 2; }

// One group meets two tiles of w at once, two to four groups meet one: four cells at most, so that w is read once.
constexpr i64 FEW_GROUPS = 4, SMALL_PAGE = 4096, FAR = 8;
constexpr i64 tall(i64 groups) { return groups == 1 ? 2 : 1; }  // tiles of w at once
// Return the most rows between those of a tile, up to FAR. Of rows longer than a page the processor follows fewer: 64 rows of x at k = 4,864 went from
// 1,370 to 1,550 GFLOP/s on two Sapphire Rapids cores, by 4 in place of 8.
static inline i64 farthest(i64 groups, i64 k) { return groups > 1 && 2 * k > SMALL_PAGE ? FAR / 2 : FAR; }
// Return the power of two by which the rows of a tile of w lie apart, where `count` rows are left.
static inline int apart_bits(i64 count, i64 groups, i64 k) {
  int bits = 0;
  while (1 << bits < farthest(groups, k) && 2 * tall(groups) * HEIGHT << bits <= count) bits++;
  return bits;
}
// Return the rows of w in a piece for up to FEW_GROUPS groups: all that lie apart, half of them where w [n k] is small. few: those for a
// single row of x.
static inline i64 few_chunk(i64 groups, i64 few, i64 n, i64 k) {
  if (groups > 1) return (n < 2048 ? FAR / 2 : farthest(groups, k)) * HEIGHT;
  const i64 pairs = parts(few, 2 * HEIGHT);
  i64 apart = 1;  // of all rows of the piece, which are `few` or more
  while (apart < farthest(groups, k) && apart < pairs) apart *= 2;
  return parts(pairs, apart) * apart * 2 * HEIGHT;
}

#if defined(__AMX_BF16__)
template <class T>
constexpr bool TILED = std::is_same_v<T, u16>;

// The shapes of the tiles, in the form that the processor loads: 0 to 3 cells, 4 and 5 of w, 6 and 7 of x. Where one tile of w meets several
// groups, 5 is of x as well: then all have one shape.
struct alignas(64) TileShapes {
  uint8_t palette = 1, zeros[15] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
  constexpr explicit TileShapes(int abreast, int high = HEIGHT) {
    for (int t = 0; t < 8; t++) bytes[t] = t == 4 || t == 5 ? 64 : 4 * abreast, rows[t] = t < 6 ? high : HEIGHT;
  }
};
static constexpr TileShapes ONE_ROW(1), HALF_GROUP(8), WHOLE_GROUP(16), EIGHT_HIGH(16, 8);  // constants: GCC believes that a load reads eight bytes only
struct Tiles {  // for this thread. Given back, since torch's library has its own
  explicit Tiles(i64 abreast) : Tiles(abreast == 1 ? ONE_ROW : abreast == 8 ? HALF_GROUP : WHOLE_GROUP) {}
  explicit Tiles(const TileShapes& shapes) { _tile_loadconfig(&shapes); }
  ~Tiles() { _tile_release(); }
};

// Load a PAIR of x, n of its numbers: in bf16 as it is, float rounded to it.
static inline I bf16_pair(const u16* p, i64 n) {
  I bits;
  factor(p, bits, n);
  return bits;
}
static inline I bf16_pair(const float* p, i64 n) {
  V a, b;
  pair(p, a, b, n);
  return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}
// Weave `side` rows of k numbers, eight or sixteen, from `row` on: those from `rows` on are zeros. start(r): where row r lies.
template <class F>
static void weave_rows(F start, i64 rows, i64 k, i64 row, i64 side, u16* to) {
  i64 at[LANES];
  for (i64 l = 0; l < LANES; l++) at[l] = l * side;
  for (i64 i = 0; i < k; i += PAIR, to += PAIR * side)
    for (i64 r = row; r < row + side; r += 8) {
      __m256 words[2 * 8];
      for (i64 j = 0; j < 8; j++) {
        const I bits = r + j < rows ? bf16_pair(start(r + j) + i, k - i) : ints(0);
        halves(as_float(bits), words + j);
      }
      for (i64 h = 0; h < LANES; h += 8) transpose(words + h, (float*)to + (r - row), at + h);
    }
}
// Weave rows of x [rows k], from `row` to the end of its group.
template <class T>
static void weave_group(const T* x, i64 rows, i64 k, i64 row, u16* to) {
  const i64 side = abreast(rows);
  if (side > 1) return weave_rows([&](i64 r) { return x + r * k; }, rows, k, row, side, to);
  for (i64 i = 0; i < k; i += PAIR) store_bits(to + i, bf16_pair(x + i, k - i));
}

// Weave all of x [rows k] in this thread's scratch, where `more` floats follow it.
static inline u16* woven_groups(const u16* x, i64 rows, i64 k, i64 more = 0) {
  u16* to = (u16*)scratch(tile_words(rows, k) + more);
  for (i64 g = 0; g < tile_groups(rows); g++) weave_group(x, rows, k, g * HEIGHT, to + g * group_size(rows, k));
  return to;
}
// Weave it by all threads, to where `pack` is to write.
template <class P>
static void weave_groups(const P& a, Work& work) {
  for (i64 g; (g = work.next()) >= 0;) weave_group(a.x, a.rows, a.k, g * HEIGHT, (u16*)a.to + g * group_size(a.rows, a.k));
}

// Up to 32 rows of w, `apart` numbers from one to the next, and k numbers of each.
struct TileRows {
  const u16* w;
  i64 count, apart, k;
};
// Add to cells the products of TALL tiles of these rows and GROUPS groups of woven x, `size` apart: [group][tile of w]. begun: whether there
// are sums in the cells, else they begin at 0. beside(i): what is done at the step of number i.
template <int TALL, int GROUPS, class F>
[[gnu::always_inline]] static inline void multiply(const TileRows& rows, const u16* x, i64 size, i64 side, float (*cells)[HEIGHT][HEIGHT], bool begun, F beside) {
  static_assert(TALL == 1 ? GROUPS <= 4 : GROUPS <= 2);
  constexpr int CELLS = TALL * GROUPS;
  if (begun) {
    _tile_loadd(0, cells[0], 64);
    if (CELLS > 1) _tile_loadd(1, cells[1], 64);
    if (CELLS > 2) _tile_loadd(2, cells[2], 64);
    if (CELLS > 3) _tile_loadd(3, cells[3], 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const auto step = [&](const u16* w, i64 stride, const u16* x) __attribute__((always_inline)) {
    _tile_loadd(4, w, 2 * stride);
    if constexpr (TALL == 2) {
      _tile_loadd(6, x, 4 * side);
      _tile_dpbf16ps(0, 4, 6);
      if (GROUPS == 2) {
        _tile_loadd(7, x + size, 4 * side);
        _tile_dpbf16ps(2, 4, 7);
      }
      _tile_loadd(5, w + HEIGHT * stride, 2 * stride);
      _tile_dpbf16ps(1, 5, 6);
      if (GROUPS == 2) _tile_dpbf16ps(3, 5, 7);
    } else {
      _tile_loadd(5, x, 4 * side);
      _tile_dpbf16ps(0, 4, 5);
      if (GROUPS > 1) {
        _tile_loadd(6, x + size, 4 * side);
        _tile_dpbf16ps(1, 4, 6);
      }
      if (GROUPS > 2) {
        _tile_loadd(7, x + 2 * size, 4 * side);
        _tile_dpbf16ps(2, 4, 7);
      }
      if (GROUPS > 3) {
        _tile_loadd(5, x + 3 * size, 4 * side);
        _tile_dpbf16ps(3, 4, 5);
      }
    }
  };
  i64 i = 0;
  if (rows.count == TALL * HEIGHT)
    for (; i + STEP <= rows.k; i += STEP) {
      beside(i);
      step(rows.w + i, rows.apart, x + i * side);
    }
  for (; i < rows.k; i += STEP) {  // zeros in place of what is no number of w
    alignas(64) u16 edge[TALL * HEIGHT][STEP] = {};
    for (i64 j = 0; j < rows.count; j++) std::memcpy(edge[j], rows.w + i + j * rows.apart, (rows.k - i < STEP ? rows.k - i : STEP) * sizeof(u16));
    asm volatile("" ::: "memory");  // GCC does not know that a tile's load reads memory
    step(edge[0], STEP, x + i * side);
  }
  _tile_stored(0, cells[0], 64);
  if (CELLS > 1) _tile_stored(1, cells[1], 64);
  if (CELLS > 2) _tile_stored(2, cells[2], 64);
  if (CELLS > 3) _tile_stored(3, cells[3], 64);
}

// The cells of columns of y, sixteen rows of x in each. Columns that follow one another are of 2^bits tiles, `tile` floats apart.
struct Columns {
  const float* cells;
  int bits = 0;
  i64 tile = 0;
  const float* operator[](i64 c) const { return cells + (c & ((1 << bits) - 1)) * tile + (c >> bits) * HEIGHT; }
};
// Transpose sixteen rows of sixteen words.
static inline void transpose16(I* v) {
  I t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]), t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]), v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]), v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[4 + i], 0x88), t[4 + i] = _mm512_shuffle_i32x4(v[i], v[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0x88), t[12 + i] = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88), v[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    v[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88), v[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}
// Round the cells of two columns to bf16, as words of both.
static inline I pairs_of(V even, V odd) {
  alignas(64) static constexpr u16 PAIRS[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(PAIRS), (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}
// Write the cells of `count` columns from `column` on, and of a group's rows from `row` on, to y: a cache line of each row at a time.
template <class L>
static inline void write(const L& a, const Columns& columns, i64 column, i64 count, i64 row) {
  using Y = std::remove_pointer_t<decltype(a.y)>;
  constexpr i64 EACH = 4 / sizeof(Y), SIDE = LANES * EACH;
  const i64 rows = a.rows - row < HEIGHT ? a.rows - row : HEIGHT;
  for (i64 c = 0; c < count; c += SIDE) {
    const i64 some = count - c < SIDE ? count - c : SIDE;
    const auto* bias = a.bias ? a.bias + column + c : nullptr;
    const auto cells = [&](i64 j) { return bias ? load(columns[c + j]) + set(get(bias + j)) : load(columns[c + j]); };
    I words[HEIGHT];
    for (i64 i = 0; i < HEIGHT; i++) {
      const i64 j = i * EACH;
      if constexpr (EACH == 1) words[i] = j < some ? as_bits(cells(j)) : ints(0);
      else words[i] = j < some ? pairs_of(cells(j), j + 1 < some ? cells(j + 1) : set(0.f)) : ints(0);
    }
    transpose16(words);
    Y* y = a.y + row * a.n + column + c;
    if (some == SIDE)
      for (i64 r = 0; r < rows; r++, y += a.n) _mm512_storeu_si512(y, words[r]);
    else
      for (i64 r = 0; r < rows; r++, y += a.n) std::memcpy(y, words + r, some * sizeof(Y));
  }
}

// Numbers of w between those that are multiplied and those that are prefetched. Tiles of x come from the second cache, and with them a core has as
// many lines on their way as it can: w's are asked for while the loads of x before them still wait.
constexpr i64 AHEAD = 2 * STEP;
// Compute columns [from, to) of up to FEW_GROUPS groups of rows, woven at x.
template <int GROUPS, class L>
static void few_tiles(const L& a, const u16* x, i64 from, i64 to) {
  constexpr int TALL = tall(GROUPS), CELLS = TALL * GROUPS;
  const i64 side = abreast(a.rows), size = group_size(a.rows, a.k);
  alignas(64) float cells[FAR * CELLS][HEIGHT][HEIGHT];
  for (i64 j = from, count; j < to; j += count) {
    const int bits = apart_bits(to - j, GROUPS, a.k);
    const i64 apart = 1 << bits;
    count = to - j < TALL * HEIGHT * apart ? to - j : TALL * HEIGHT * apart;
    for (i64 t = 0; t < apart; t++) {
      const TileRows rows{a.w + (j + t) * a.k, count / apart, apart * a.k, a.k};
      const auto beside = [&](i64 i) {
        for (i64 r = 0; r < TALL * HEIGHT; r++) prefetch_l1(rows.w + r * rows.apart + i + AHEAD);
      };
      multiply<TALL, GROUPS>(rows, x, size, side, cells + t * CELLS, false, beside);
    }
    for (i64 g = 0; g < GROUPS; g++) write(a, {cells[g * TALL][0], bits, CELLS * HEIGHT * HEIGHT}, j, count, g * HEIGHT);
  }
}
template <class L>
static void few_tiles(const L& a, const u16* x, i64 from, i64 to) {
  const Tiles tiles(abreast(a.rows));
  asm volatile("" ::: "memory");  // GCC does not know that a tile's load reads memory
  fixed<FEW_GROUPS>(tile_groups(a.rows), [&](auto groups) { few_tiles<groups>(a, x, from, to); });
}
#else
template <class T>
constexpr bool TILED = false;
#endif
