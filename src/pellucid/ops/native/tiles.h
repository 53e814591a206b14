// Products of bf16 by the processor's tiles (AMX): sixteen rows of w, 32 numbers of each, times the same numbers of up to sixteen rows of x.
//
// The one idea: a tile of w is loaded from the weight as it lies, and x alone is woven, into words of two numbers: word p of each row of a
// group of rows, then word p + 1 of each. A cell is added to in steps of 32 numbers of k and nothing else enters it, so that a row has the
// same bits alone, in a prompt, and in any batch. Sixteen rows cost what one does.
//
// Which rows of w make a tile is free. With one group of rows of x they lie `apart`, and the next tile has the row behind each: 32 streams,
// which the processor follows from one tile to the next and reads ahead. In rows that follow one another each would end after k numbers.
//     apart = 8     tile 0: rows 0 8 16 24 ...     tile 1: rows 1 9 17 25 ...     ...     tile 7: rows 7 15 23 31 ...
//
// Within a step a tile sums the even numbers' products and the odd ones' by fused multiply-adds from 0, then adds both sums, and that to the
// cell. All is rounded to nearest even in float; numbers below 2^-126 count as 0, of w, of x, and of the sums.
#pragma once
#include "walk.h"

constexpr i64 HEIGHT = 16, STEP = 32;  // HEIGHT: the rows of a tile.  STEP: its numbers of k
// Return the words side by side in woven x: one for each row of a group. Of eight or sixteen the last ones may be zeros.
static inline i64 abreast(i64 rows) { return rows == 1 ? 1 : rows <= HEIGHT / 2 ? HEIGHT / 2 : HEIGHT; }
static inline i64 group_size(i64 rows, i64 k) { return parts(k, STEP) * STEP * abreast(rows); }  // in numbers
static inline i64 tile_groups(i64 rows) { return parts(rows, HEIGHT); }
static inline i64 tile_words(i64 rows, i64 k) { return tile_groups(rows) * group_size(rows, k) / 2; }
// Return the groups of a block, which stays in the second cache while it meets rows of w: even, and blocks of one size.
static inline i64 tile_block(i64 rows, i64 k) {
  const i64 groups = tile_groups(rows), fit = (1 << 20) / (2 * group_size(rows, k)) / 2 * 2, most = fit < 2 ? 2 : fit;
  return parts(parts(groups, parts(groups, most)), 2) * 2;
}
static inline i64 tile_blocks(i64 rows, i64 k) { return parts(tile_groups(rows), tile_block(rows, k)); }
// Return how far the rows of a tile of w lie apart, where a pair of tiles has `count` rows to choose from: the largest power of two up to FAR.
constexpr i64 FAR = 8;
static inline i64 tile_apart(i64 count) {
  i64 apart = 1;
  while (apart < FAR && 4 * HEIGHT * apart <= count) apart *= 2;
  return apart;
}
// Return the rows of w in a piece, whole pairs of tiles. few: those for a single row of x.
static inline i64 tile_chunk(i64 rows, i64 few) {
  const i64 pairs = parts(few, 2 * HEIGHT);
  if (rows > HEIGHT) return rows > 2 * HEIGHT ? 4 * HEIGHT : pairs * 2 * HEIGHT;
  i64 apart = 1;  // of all rows of the piece, which are `few` or more
  while (apart < FAR && apart < pairs) apart *= 2;
  return parts(pairs, apart) * apart * 2 * HEIGHT;
}

#if defined(__AMX_BF16__)
template <class T>
constexpr bool TILED = std::is_same_v<T, u16>;

// The shapes of the tiles, in the form that the processor loads: 0 to 3 cells, 4 and 5 of w, 6 and 7 of x.
struct alignas(64) TileShapes {
  uint8_t palette = 1, zeros[15] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
  constexpr explicit TileShapes(int abreast) {
    for (int t = 0; t < 8; t++) bytes[t] = t == 4 || t == 5 ? 64 : 4 * abreast, rows[t] = HEIGHT;
  }
};
static constexpr TileShapes ONE_ROW(1), HALF_GROUP(8), WHOLE_GROUP(16);  // constants: GCC believes that a load reads eight bytes only
struct Tiles {  // for this thread. Given back, since torch's library has its own
  explicit Tiles(i64 abreast) { _tile_loadconfig(abreast == 1 ? &ONE_ROW : abreast == 8 ? &HALF_GROUP : &WHOLE_GROUP); }
  ~Tiles() { _tile_release(); }
};

// Weave `side` rows of k numbers, eight or sixteen, from `row` on: those from `rows` on are zeros. start(r): where row r lies.
template <class F>
static void weave_rows(F start, i64 rows, i64 k, i64 row, i64 side, u16* to) {
  i64 at[LANES];
  for (i64 l = 0; l < LANES; l++) at[l] = l * side;
  for (i64 i = 0; i < k; i += PAIR, to += PAIR * side)
    for (i64 r = row; r < row + side; r += 8) {
      __m256 words[2 * 8];
      for (i64 j = 0; j < 8; j++) {
        I bits = ints(0);
        if (r + j < rows) factor(start(r + j) + i, bits, k - i);
        halves(as_float(bits), words + j);
      }
      for (i64 h = 0; h < LANES; h += 8) transpose(words + h, (float*)to + (r - row), at + h);
    }
}
// Weave rows of x [rows k], from `row` to the end of its group.
static void weave_group(const u16* x, i64 rows, i64 k, i64 row, u16* to) {
  const i64 side = abreast(rows);
  if (side > 1) return weave_rows([&](i64 r) { return x + r * k; }, rows, k, row, side, to);
  for (i64 i = 0; i < k; i += PAIR) arrange(x + i, to + i, k - i < PAIR ? k - i : PAIR);
}

// Weave all of x [rows k] in this thread's scratch.
static inline u16* woven_groups(const u16* x, i64 rows, i64 k) {
  u16* to = (u16*)scratch(tile_words(rows, k));
  for (i64 g = 0; g < tile_groups(rows); g++) weave_group(x, rows, k, g * HEIGHT, to + g * group_size(rows, k));
  return to;
}
// Weave it by all threads, to where `pack` is to write.
template <class P>
static void weave_groups(const P& a, Work& work) {
  for (i64 g; (g = work.next()) >= 0;) weave_group(a.x, a.rows, a.k, g * HEIGHT, (u16*)a.to + g * group_size(a.rows, a.k));
}

// A prefetch beside the products, at an even pace: of the next rows of w. Rows of more than a page, and rows apart, the processor follows by
// itself, and faster: on two Sapphire Rapids cores, of 30 GB/s that reading alone takes, a row of x went from 27.2 to 30.7 and sixteen from
// 26.3 to 29.8 at k = 896 and n = 4,864, by rows 8 apart; 512 rows from 1,100 to 1,200 GFLOP/s at k = 4,864.
constexpr i64 SMALL_PAGE = 4096;
struct Pace {
  const char* at;
  i64 bytes;
  [[gnu::always_inline]] inline void go() {
    for (i64 i = 0; i < bytes; i += 64) _mm_prefetch(at + i, _MM_HINT_T1);
    at += bytes;
  }
};

// Rows of w, `apart` numbers from one to the next.
struct TileRows {
  const u16* w;
  i64 count, apart, k;
};
// Set cells to the products of these rows, up to two tiles, and GROUPS groups of woven x, `size` apart: [group][tile of w].
template <int GROUPS>
static inline void multiply(const TileRows& rows, const u16* x, i64 size, i64 side, float (*cells)[HEIGHT][HEIGHT], Pace& pace) {
  const i64 count = rows.count, k = rows.k;
  alignas(64) u16 edge[2 * HEIGHT][STEP];
  const bool both = count > HEIGHT, whole = count == HEIGHT || count == 2 * HEIGHT;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (i64 i = 0; i < k; i += STEP) {
    const u16* from = rows.w + i;
    i64 stride = rows.apart;
    if (!whole || i + STEP > k) {  // zeros in place of what is no number of w
      std::memset(edge, 0, sizeof edge);
      for (i64 j = 0; j < count; j++) std::memcpy(edge[j], from + j * rows.apart, (k - i < STEP ? k - i : STEP) * sizeof(u16));
      from = edge[0], stride = STEP;
      asm volatile("" ::: "memory");  // GCC does not know that a tile's load reads memory
    }
    pace.go();
    _tile_loadd(6, x + i * side, 4 * side);
    _tile_loadd(4, from, 2 * stride);
    _tile_dpbf16ps(0, 4, 6);
    if (GROUPS == 2) {
      _tile_loadd(7, x + size + i * side, 4 * side);
      _tile_dpbf16ps(2, 4, 7);
    }
    if (!both) continue;
    _tile_loadd(5, from + HEIGHT * stride, 2 * stride);
    _tile_dpbf16ps(1, 5, 6);
    if (GROUPS == 2) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, cells[0], 64);
  _tile_stored(1, cells[1], 64);
  if (GROUPS == 1) return;
  _tile_stored(2, cells[2], 64);
  _tile_stored(3, cells[3], 64);
}

// The cells of columns of y, sixteen rows of x in each. Columns that follow one another are of `apart` tiles, `tile` floats apart.
struct Columns {
  const float* cells;
  i64 apart, tile;
  const float* operator[](i64 c) const { return cells + c % apart * tile + c / apart * HEIGHT; }
};
// Transpose sixteen columns from c on, and up to sixteen rows, to y's rows, `pitch` apart. bias: of these columns, or null.
static inline void turn(const Columns& columns, i64 c, const float* bias, float* y, i64 pitch) {
  i64 at[HEIGHT];
  for (i64 r = 0; r < HEIGHT; r++) at[r] = r * pitch;
  for (i64 i = 0; i < HEIGHT; i += 8) {
    __m256 h[16];
    for (i64 j = i; j < i + 8; j++) halves(bias ? load(columns[c + j]) + set(bias[j]) : load(columns[c + j]), h + (j - i));
    transpose(h, y + i, at), transpose(h + 8, y + i, at + 8);
  }
}
static inline void turn(const Columns& columns, i64 c, const float* bias, u16* y, i64 pitch) {  // as words of two. pitch: even
  i64 at[HEIGHT];
  for (i64 r = 0; r < HEIGHT; r++) at[r] = r * pitch / 2;
  __m256 h[16];
  for (i64 j = 0; j < HEIGHT; j += 2) {
    const V a = load(columns[c + j]), b = load(columns[c + j + 1]);
    halves(as_float(bias ? either(rounded(a + set(bias[j])), up16(rounded(b + set(bias[j + 1])))) : either(rounded(a), up16(rounded(b)))), h + j / 2);
  }
  transpose(h, (float*)y, at), transpose(h + 8, (float*)y, at + 8);
}
// Write the cells of `count` columns from `column` on, and of a group's rows from `row` on, to y.
template <class L>
static inline void write(const L& a, const Columns& columns, i64 column, i64 count, i64 row) {
  using Y = std::remove_pointer_t<decltype(a.y)>;
  const i64 rows = a.rows - row < HEIGHT ? a.rows - row : HEIGHT;
  for (i64 c = 0; c < count; c += HEIGHT) {
    const i64 some = count - c < HEIGHT ? count - c : HEIGHT;
    alignas(64) float bias[HEIGHT] = {};
    if (a.bias) store(bias, load(a.bias + column + c, some));
    Y* y = a.y + row * a.n + column + c;
    if (rows == HEIGHT && some == HEIGHT && a.n % 2 == 0) {
      turn(columns, c, a.bias ? bias : nullptr, y, a.n);
      continue;
    }
    alignas(64) Y all[HEIGHT][HEIGHT];
    turn(columns, c, a.bias ? bias : nullptr, all[0], HEIGHT);
    for (i64 r = 0; r < rows; r++) std::memcpy(y + r * a.n, all[r], some * sizeof(Y));
  }
}

// Compute columns [from, to) of the groups [first, last) of rows, woven at x. then: the first column of this thread's next piece, to prefetch.
template <class L>
static void tile_product(const L& a, const u16* x, i64 from, i64 to, i64 then, i64 first, i64 last) {
  const i64 side = abreast(a.rows), size = group_size(a.rows, a.k), steps = parts(last - first, 2) * parts(a.k, STEP);
  const bool alone = last - first == 1, followed = alone || a.k * 2 > SMALL_PAGE;
  alignas(64) float cells[2 * FAR][HEIGHT][HEIGHT];  // two tiles of w: for each step of rows apart, or for each of two groups
  const Tiles tiles(side);
  asm volatile("" ::: "memory");  // as above
  for (i64 j = from, apart; j < to; j += 2 * HEIGHT * apart) {
    apart = alone ? tile_apart(to - j) : 1;
    const i64 end = j + 2 * HEIGHT * apart, count = (end < to ? end : to) - j, next = end < to ? end : then;
    Pace pace{(const char*)(a.w + next * a.k), followed ? 0 : (count * a.k * 2 + steps - 1) / steps};
    for (i64 g = first; g < last; g += 2) {
      for (i64 t = 0; t < apart; t++) {
        const TileRows rows{a.w + (j + t) * a.k, count / apart, apart * a.k, a.k};
        if (g + 1 < last) multiply<2>(rows, x + g * size, size, side, cells + 2 * t, pace);
        else multiply<1>(rows, x + g * size, size, side, cells + 2 * t, pace);
      }
      for (i64 h = g; h < last && h < g + 2; h++) write(a, {cells[2 * (h - g)][0], apart, 2 * HEIGHT * HEIGHT}, j, count, h * HEIGHT);
    }
  }
}
// Compute pieces of the product of all groups, woven at x: the columns of one block of groups, then those of the next.
template <class L>
static void tile_columns(const L& a, const u16* x, Work& work) {
  const i64 chunk = a.chunk(), pieces = parts(a.n, chunk), block = tile_block(a.rows, a.k), groups = tile_groups(a.rows);
  for (i64 p = work.next(), then; p >= 0; p = then) {
    then = work.next();  // taken early, so that it can be prefetched
    const i64 from = p % pieces * chunk, to = from + chunk < a.n ? from + chunk : a.n, first = p / pieces * block, last = first + block;
    tile_product(a, x, from, to, then < 0 ? from : then % pieces * chunk, first, last < groups ? last : groups);
  }
}
#else
template <class T>
constexpr bool TILED = false;
#endif
