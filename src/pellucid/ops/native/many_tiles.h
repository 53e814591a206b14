// Products of tiles.h for more than FEW_GROUPS groups of rows: prompts, and large batches.
//
// The one idea: two tiles of w and two groups of x give four products for four loads. What is loaded again and again has to be near: 32 rows
// of w, NEAR_K numbers of each, stay in the first cache while all groups of x meet them; those numbers of x stay in the second while all
// columns of a piece do. Between the blocks of k the cells wait in memory, in float, as they were: their bits are those of tiles.h.
//     for a piece of y: for a block of k: for 32 of its columns: for two groups: cells += w . x
//
// On two Sapphire Rapids cores 512 rows went from 1,530 to 1,870 GFLOP/s at k = 4,864, and from 1,710 to 1,870 at k = 896 (of 2,700 without
// writing y, which is memory that no cache holds yet).
#pragma once
#include "tiles.h"

#if defined(__AMX_BF16__)
#include <thread>

constexpr i64 NEAR_K = 256, MOST_GROUPS = 32, PAIR_OF_TILES = 2 * HEIGHT;
// Return the groups of a piece: even, and pieces of one size.
static inline i64 piece_groups(i64 rows) { return parts(parts(tile_groups(rows), parts(tile_groups(rows), MOST_GROUPS)), 2) * 2; }
// Return the columns of a piece of y [rows n]: more where x [rows k] does not fit the second cache, since each piece reads it again; fewer
// for few rows, whose w the processor reads ahead; and two pieces for each processor or more.
static inline i64 piece_columns(i64 rows, i64 n, i64 k) {
  static const i64 processors = std::thread::hardware_concurrency();
  const i64 height = piece_groups(rows) * HEIGHT, far = height * k * 2 > (1 << 20) ? 256 : 64, most = height / 2 < far ? height / 2 : far;
  const i64 least = parts(2 * processors, parts(rows, height)), pieces = parts(n, most < 64 ? 64 : most);
  return parts(parts(n, PAIR_OF_TILES), parts(pieces > least ? pieces : least, least) * least) * PAIR_OF_TILES;
}
// Return the rows of w in a piece. few: those for a single row of x.
template <class L>
static i64 tile_chunk(const L& a, i64 few) {
  const i64 groups = tile_groups(a.rows);
  return groups > FEW_GROUPS ? piece_columns(a.rows, a.n, a.k) : few_chunk(groups, few, a.n, a.k);
}
template <class L>
static i64 shared_pieces(const L& a) {
  return parts(a.n, a.chunk()) * (tile_groups(a.rows) > FEW_GROUPS ? parts(tile_groups(a.rows), piece_groups(a.rows)) : 1);
}

// Return the floats of the cells of a piece: `columns` of them.
static inline i64 waiting_cells(i64 rows, i64 columns) { return parts(columns, PAIR_OF_TILES) * piece_groups(rows) * 2 * HEIGHT * HEIGHT; }

// The rows of w as `many_tiles` reads them: as they lie.
struct PlainRows {
  const u16* w;
  i64 k;
  void prefetch(i64 row, i64 i) const { prefetch_l2(w + row * k + i); }
  TileRows rows(i64 j, i64 i, i64 count, i64 width) const { return {w + j * k + i, count, k, width}; }
};

// Compute columns [from, to) of the groups [first, last) of rows, woven at x. then: the first column of this thread's next piece, to prefetch.
template <class L, class W>
static void many_tiles(const L& a, const W& w, const u16* x, float* space, i64 from, i64 to, i64 then, i64 first, i64 last) {
  using Y = std::remove_pointer_t<decltype(a.y)>;
  const i64 size = group_size(a.rows, a.k), blocks = parts(a.k, NEAR_K), span = parts(parts(a.k, STEP), blocks) * STEP;
  const i64 ahead = parts(PAIR_OF_TILES, parts(last - first, 2));  // rows of the next block of w to prefetch beside two groups
  const i64 written = parts(PAIR_OF_TILES, parts(a.k, STEP));  // rows of y to prefetch at a step
  const Tiles tiles(HEIGHT);
  asm volatile("" ::: "memory");  // GCC does not know that a tile's load reads memory
  for (i64 i = 0; i < a.k; i += span) {
    const bool ends = i + span >= a.k;
    const i64 width = ends ? a.k - i : span;
    auto cells = (float(*)[HEIGHT][HEIGHT])space;
    for (i64 j = from; j < to; j += PAIR_OF_TILES) {
      const bool turns = j + PAIR_OF_TILES >= to;  // the next block is of other numbers of k
      const i64 count = turns ? to - j : PAIR_OF_TILES, next = !turns ? j + PAIR_OF_TILES : ends ? then : from, at = !turns ? i : ends ? 0 : i + span;
      const TileRows rows = w.rows(j, i, count, width);
      i64 later = next;
      for (i64 g = first; g < last; g += 2, cells += 4, later += ahead) {
        Y* y = a.y + g * HEIGHT * a.n + j;
        const auto beside = [&](i64 of) {
          for (i64 r = 0; r < ahead; r++) w.prefetch(later + r, at + of);  // a step's numbers are a line of a row
          for (i64 r = (i + of) / STEP * written, last = r + written; r < last && r < PAIR_OF_TILES; r++) prefetch_to_write(y + r * a.n);
        };
        const u16* of_x = x + g * size + i * HEIGHT;
        if (g + 1 < last) multiply<2, 2>(rows, of_x, size, HEIGHT, cells, i > 0, beside);
        else multiply<2, 1>(rows, of_x, size, HEIGHT, cells, i > 0, beside);
        for (i64 h = g; ends && h < last && h < g + 2; h++) write(a, {cells[2 * (h - g)][0]}, j, count, h * HEIGHT);
      }
    }
  }
}

// Compute columns [from, to) of all rows of x, which this thread weaves first.
template <class L>
static void own_tiles(const L& a, const u16* x, i64 from, i64 to) {
  const i64 groups = tile_groups(a.rows), block = piece_groups(a.rows);
  const u16* woven = woven_groups(x, a.rows, a.k, groups > FEW_GROUPS ? waiting_cells(a.rows, to - from) : 0);
  if (groups <= FEW_GROUPS) return few_tiles(a, woven, from, to);
  float* space = (float*)woven + tile_words(a.rows, a.k);
  for (i64 g = 0; g < groups; g += block) many_tiles(a, PlainRows{a.w, a.k}, woven, space, from, to, from, g, g + block < groups ? g + block : groups);
}
// Compute pieces of the product of all rows, woven at x: the columns of one block of groups, then those of the next.
template <class L, class W>
static void shared_tiles(const L& a, const W& w, const u16* x, float* space, Work& work) {
  const i64 chunk = a.chunk(), pieces = parts(a.n, chunk), groups = tile_groups(a.rows), block = piece_groups(a.rows);
  for (i64 p = work.next(), then; p >= 0; p = then) {
    then = work.next();  // taken early, so that it can be prefetched
    const i64 from = p % pieces * chunk, to = from + chunk < a.n ? from + chunk : a.n, first = p / pieces * block, last = first + block;
    many_tiles(a, w, x, space, from, to, then < 0 ? from : then % pieces * chunk, first, last < groups ? last : groups);
  }
}
// Compute pieces of the product of all rows, woven at x, and weights as they lie.
template <class L>
static void shared_tiles(const L& a, const u16* x, Work& work) {
  const i64 chunk = a.chunk();
  if (tile_groups(a.rows) > FEW_GROUPS) return shared_tiles(a, PlainRows{a.w, a.k}, x, scratch(waiting_cells(a.rows, chunk)), work);
  for (i64 p; (p = work.next()) >= 0;) few_tiles(a, x, p * chunk, p * chunk + chunk < a.n ? p * chunk + chunk : a.n);
}
#endif
