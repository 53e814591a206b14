// y[r, n] = x[r, :] . w[n, :] + bias[n] for a few rows.
//
// The one idea: with few rows the cost is reading the weight from memory, so its rows are read in order, each once, and prefetched.
// The order of a cell's sum is set by k alone: a row has the same bits alone, among sixteen, and in many.h. Where the processor multiplies
// bf16 in tiles, tiles.h computes these products for any number of rows.
#pragma once
#include "many_tiles.h"

// Return the rows of w in a piece: 256 KiB of a large weight, less of a small one, to have pieces for every thread. row: bytes of a row.
static inline i64 rows_a_chunk(i64 n, i64 row) {
  i64 bytes = n * row / 32;
  bytes = bytes < (16 << 10) ? 16 << 10 : bytes > (256 << 10) ? 256 << 10 : bytes;
  i64 many = bytes / row / 8 * 8;
  return many < 8 ? 8 : many;
}

template <class T, class Y = T>
struct Linear {
  const T *w, *x;
  Y* y;
  const T* bias;
  i64 rows, n, k;
  FIELDS(w, x, y, bias, rows, n, k)
  i64 chunk() const;
};

// A tile is W_ROWS rows of w times up to TILE rows of x; its accumulators stay in registers. A single row of x takes one
// row of w at a time: on a Zen 3 core two cost a third of the bandwidth (18 GB/s became 12), and on a Cascade Lake they gain nothing.
// There 16 rows went from 145 to 178 GFLOP/s by loading a vector of x once for both.
constexpr int TILE = 6, W_ROWS = LANES == 16 ? 2 : 1;
// Where a core has tiles it follows many rows of w at once, and reads more by them than by a prefetch of one: eight rows, an eighth of a block
// apart so that each goes on where the last one ended, 30 to 32 GB/s on two Sapphire Rapids cores, one row 26 to 28.
#if defined(__AMX_BF16__)
template <int R>
constexpr int ROWS_APART = R == 1 ? 8 : R <= 4 ? 4 : W_ROWS;
#else
template <int R>
constexpr int ROWS_APART = R == 1 ? 1 : W_ROWS;
#endif
constexpr i64 SPAN = 1024;  // the most numbers of k in a block: a tile's part of x stays in the first cache
// The most rows and bytes of w in a block: this block and the next stay in the second cache while all tiles use this one.
constexpr i64 NEAR = 64, NEAR_BYTES = (LANES == 16 ? 96 : 512) << 10;
// Return the rows of w in a piece. With several tiles it has more rows, since every piece reads x again.
template <class T, class Y>
i64 Linear<T, Y>::chunk() const {
  const i64 many = rows_a_chunk(n, k * (i64)sizeof(T)), most = n / 512 * 8;
  if constexpr (TILED<T>) return tile_chunk(*this, many);
  return rows <= TILE || many >= 32 ? many : most > 32 ? 32 : most > many ? most : many;
}

// Accumulators of a cell: one with 16 lanes, otherwise one for the even numbers of each PAIR and one for the odd ones.
constexpr int SUMS = LANES == 16 ? 1 : 2;
static inline V joined(const V* sums) { return SUMS == 1 ? sums[0] : sums[0] + sums[1]; }

// Prefetch one vector of each half of a PAIR.
template <class T>
static inline void prefetch(const T* w) {
  if constexpr (LANES == 16) {
    prefetch_l2(w);
    if constexpr (sizeof(T) == 4) prefetch_l2((const char*)w + 64);
  } else if constexpr (sizeof(T) == 2) prefetch_l1(w);
}
// Prefetch further along this row. On Cascade Lake one row of bf16 went from 19.3 to 22.1 GB/s, four from 15.5 to 20, one of int4 from 18.3
// to 21.2; on a Zen 3 core bf16 went from 16.6 to 19.2, and float lost a tenth.
template <class T>
static inline void ahead(const T* w) {
  prefetch(w + (LANES == 16 ? 4096 : 1024) / sizeof(T));
}
// A tile's share of the next block of w, to prefetch. With several tiles on one block, the first would wait for memory and the others leave
// it idle, so each prefetches a share at an even pace: a core has at most twelve lines in flight, and a burst stalls it. 16 rows on two
// Cascade Lake cores: 190 -> 260 GFLOP/s at k = 896, 160 -> 232 at 4,864. It alternates between two rows, or follows one if the block's rows
// are contiguous, where the processor prefetches too.
template <class T>
struct Share {
  const T* at = nullptr;
  i64 stride = 0, turn = 0, pace = 0;  // stride: from row to row of w.  turn: from the first row to the other.  pace: from step to step
  Share() = default;
  Share(const T* block, i64 count, i64 span, i64 k, i64 t, i64 tiles) : stride(k), turn(k), pace(parts(PAIR * W_ROWS, tiles)) {
    at = block + t * (span < k ? span : count * k) / tiles;
    if (span == k) stride = k / tiles, turn = pace, pace *= 2;
  }
  Share operator+(i64 rows) const {
    Share later = *this;
    later.at += rows * stride;
    return later;
  }
};

// A block of w: `span` numbers of each of `count` rows, k apart. begins, ends: whether these are the first, the last of the row.
template <class T>
struct Block {
  const T* w;
  i64 count, span, k;
  bool begins, ends;
};

// Return the first row of tile t of `rows`: sixteen are 5 + 5 + 6.
static inline i64 first(i64 t, i64 rows) { return t * rows / parts(rows, TILE); }

// Arrange x [rows k] for tiles in this thread's scratch: a PAIR of each row of a tile, then the next PAIR. Space for `partial` follows.
template <class T>
static inline Factor<T>* arranged(const T* x, i64 rows, i64 k) {
  if constexpr (TILED<T>) return woven_groups(x, rows, k);
  Factor<T>* to = (Factor<T>*)scratch(rows * (padded(k) + NEAR * LANES * SUMS));
  for (i64 t = 0; t < parts(rows, TILE); t++) {
    const i64 from = first(t, rows), count = first(t + 1, rows) - from;
    for (i64 r = 0; r < count; r++) arrange(x + (from + r) * k, to + from * padded(k) + r * PAIR, k, count * PAIR);
  }
  return to;
}

// Add to sums the products of J rows of w, `stride` apart, and R arranged rows of x, over k numbers. Cell (r, j) is r * J + j.
template <class T, int J, int R, bool SHARED = false, class X>
[[gnu::always_inline]] static inline void dot(const T* w, i64 stride, const X* x, i64 k, V* sums, Share<T> share = {}) {
  const auto step = [&](const T* const* w, i64 i, const X* x) __attribute__((always_inline)) {
    Loaded<X> a[J], b;
#pragma GCC unroll 8
    for (int j = 0; j < J; j++) factor(w[j] + i, a[j]);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      factor(x + r * PAIR, b);
      if (J > 1) kept(b);
#pragma GCC unroll 8
      for (int j = 0; j < J; j++) meet(a[j], b, sums[(r * J + j) * SUMS], sums[(r * J + j) * SUMS + SUMS - 1]);
    }
  };
  const T* rows[J];
  for (int j = 0; j < J; j++) rows[j] = w + j * stride;
  i64 i = 0;
  if constexpr (SHARED)
    for (; i + 2 * PAIR <= k; i += 2 * PAIR, share.at += share.pace) {
      prefetch(share.at);
      step(rows, i, x + i * R);
      prefetch(share.at + share.turn);
      step(rows, i + PAIR, x + (i + PAIR) * R);
    }
  for (; i + PAIR <= k; i += PAIR) {
    if constexpr (SHARED) prefetch(share.at);
    else if (J <= W_ROWS)
      for (int j = 0; j < J; j++) ahead(rows[j] + i);
    step(rows, i, x + i * R);
  }
  if (i < k) {
    T last[J][PAIR] = {};
    for (int j = 0; j < J; j++) std::memcpy(last[j], rows[j] + i, (k - i) * sizeof(T)), rows[j] = last[j];
    step(rows, 0, x + i * R);
  }
}

// Set out[r][j] to the product of row r of x and row j of a block. Between blocks of one row the sums are kept in `partial`.
template <class T, int J, int R, bool SHARED>
static void sums(const Block<T>& b, const Factor<T>* x, V* partial, float (*out)[NEAR], const Share<T>& share) {
  constexpr int CELLS = J * R;
  const i64 apart = J > W_ROWS ? b.count / J : 1;
  for (i64 i = 0; i < b.count / J; i++) {
    const i64 j = J > W_ROWS ? i : i * J;
    V cells[CELLS * SUMS], *waiting = partial + j * R * SUMS;
#pragma GCC unroll 16
    for (int c = 0; c < CELLS * SUMS; c++) cells[c] = b.begins ? set(0.f) : waiting[c];
    dot<T, J, R, SHARED>(b.w + j * b.k, apart * b.k, x, b.span, cells, share + j);
    if (!b.ends) {
#pragma GCC unroll 16
      for (int c = 0; c < CELLS * SUMS; c++) waiting[c] = cells[c];
      continue;
    }
#pragma GCC unroll 16
    for (int c = 0; c < CELLS; c++) cells[c] = joined(cells + c * SUMS);
    float each[LANES];
    if constexpr (CELLS == 1) each[0] = total(cells[0]);
    else store(each, totals<CELLS>(cells));
    for (int r = 0; r < R; r++)
      for (int s = 0; s < J; s++) out[r][j + s * apart] = each[r * J + s];
  }
  if constexpr (J > 1)
    if (const i64 done = b.count / J * J; done < b.count) {
      const Block<T> rest{b.w + done * b.k, b.count - done, b.span, b.k, b.begins, b.ends};
      sums<T, 1, R, false>(rest, x, partial + done * R * SUMS, (float(*)[NEAR])(out[0] + done), share);
    }
}

// Write R rows of y from `row` on, in a block's columns from `from` on.
template <class T, int R, bool SHARED, class Y>
static void tile(const Linear<T, Y>& a, const Block<T>& b, const Share<T>& share, const Factor<T>* x, V* partial, i64 row, i64 from) {
  float out[R][NEAR];
  sums<T, SHARED ? W_ROWS : ROWS_APART<R>, R, SHARED>(b, x, partial, out, share);
  for (int r = 0; r < R && b.ends; r++)
    steps(0, b.count, [&](i64 j, i64 n) {
      const V sum = load(out[r] + j, n);
      store(a.y + (row + r) * a.n + from + j, a.bias ? sum + load(a.bias + from + j, n) : sum, n);
    });
}

// Compute columns [from, to) of all rows, arranged at x. One tile reads each row of w from end to end; several tiles read w block by
// block. then: the first column of this thread's next piece, to prefetch.
template <class T, class Y>
static void product(const Linear<T, Y>& a, Factor<T>* x, i64 from, i64 to, i64 then) {
  if constexpr (TILED<T>) return few_tiles(a, x, from, to);
  const i64 tiles = parts(a.rows, TILE), width = padded(a.k), span = tiles > 1 ? padded(parts(a.k, parts(a.k, SPAN))) : width;
  const i64 many = NEAR_BYTES / (span * (i64)sizeof(T)), most = tiles == 1 || many > NEAR ? NEAR : many;
  const i64 near = parts(to - from, parts(to - from, most) * 2) * 2;  // blocks of one size, since each prefetches as many rows as it has
  V* partial = (V*)(x + a.rows * width);
  for (i64 j = from; j < to; j += near)
    for (i64 i = 0; i < a.k; i += span) {
      const bool ends = i + span >= a.k;
      const i64 end = j + near < to ? j + near : to, size = ends ? a.k - i : span;
      const T* next = a.w + (!ends ? j * a.k + i + span : (end < to ? end : then) * a.k);
      for (i64 t = 0; t < tiles; t++) {
        const i64 row = first(t, a.rows), rows = first(t + 1, a.rows) - row;
        const Block<T> block{a.w + j * a.k + i, end - j, size, a.k, !i, ends};
        const Share<T> share(next, end - j, size, a.k, t, tiles);
        const Factor<T>* tile_x = x + row * width + i * rows;
        fixed<TILE>(rows, [&](auto some) {
          if (tiles == 1) tile<T, some, false>(a, block, share, tile_x, partial, row, j);
          else tile<T, some, LANES == 16>(a, block, share, tile_x, partial + row * near * SUMS, row, j);
        });
      }
    }
}

template <class T, class Y = T>
static i64 linear_pieces(const Linear<T, Y>& a) {
  return parts(a.n, a.chunk());
}
template <class T, class Y = T>
static void linear(const Linear<T, Y>& a, Work& work) {
  const i64 chunk = a.chunk();
  Factor<T>* x = arranged(a.x, a.rows, a.k);
  const auto columns = [&](i64 p, i64 then) { product(a, x, p * chunk, p * chunk + chunk < a.n ? p * chunk + chunk : a.n, then * chunk); };
  i64 p = work.next(), then;
  if (a.rows <= TILE && !TILED<T>)
    for (; p >= 0; p = work.next()) columns(p, p);
  else
    for (; p >= 0; p = then) then = work.next(), columns(p, then < 0 ? p : then);  // taken early, so that it can be prefetched
}
