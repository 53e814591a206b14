// The neurons of a gated feed-forward part for many rows, act(gate . x) * (up . x) (arXiv 2002.05202), in the tiles of bf16 (AMX).
//
// The one idea: of a piece both products stay near until they are multiplied. They are written to memory of this thread, rounded as they
// would be in a table of all rows, so that the bits are those of three calls; of what three calls write to memory this writes a third, and
// it reads none of it.
#pragma once
#include "many.h"
#include "rows.h"

#if defined(__AMX_BF16__)
struct NeuronsMany {
  const u16 *gate, *up, *x;  // x: woven
  u16* y;
  const u16 *gate_bias, *up_bias;
  i64 rows, n, k, act;
  double amount;
  FIELDS(gate, up, x, y, gate_bias, up_bias, rows, n, k, act, amount)
  i64 chunk() const { return tile_chunk(*this, rows_a_chunk(n, k * (i64)sizeof(u16))); }
};
// The rows of gate, then those of up, as `many_tiles` reads them.
struct GateThenUp {
  const u16 *gate, *up;
  i64 n, k;
  PlainRows of(i64 row) const { return row < n ? PlainRows{gate, k} : PlainRows{up - n * k, k}; }
  void prefetch(i64 row, i64 i) const { of(row).prefetch(row, i); }
  TileRows rows(i64 j, i64 i, i64 count, i64 width) const { return of(j).rows(j, i, count, width); }
};

static i64 neurons_many_pieces(const NeuronsMany& a) { return shared_pieces(a); }
static void neurons_many(const NeuronsMany& a, Work& work) {
  const i64 chunk = a.chunk(), pieces = parts(a.n, chunk), groups = tile_groups(a.rows);
  const bool few = groups <= FEW_GROUPS;
  const i64 block = few ? groups : piece_groups(a.rows), cells = few ? 0 : waiting_cells(a.rows, chunk);
  float* space = scratch(cells + block * HEIGHT * chunk);
  u16* const near = (u16*)(space + cells);
  const GateThenUp both{a.gate, a.up, a.n, a.k};
  for (i64 p = work.next(), then; p >= 0; p = then) {
    then = work.next();  // taken early, so that it can be prefetched
    const i64 from = p % pieces * chunk, to = from + chunk < a.n ? from + chunk : a.n, width = to - from, next = then < 0 ? from : then % pieces * chunk;
    const i64 first = p / pieces * block, last = first + block < groups ? first + block : groups, row = first * HEIGHT;
    u16 *const g = near - row * width, *const up = g + block * HEIGHT * width;  // as row 0 would lie
    // Compute columns [from, to) of one product, whose weight's rows begin at `skip` of both.
    const auto product = [&](const u16* w, const u16* bias, u16* y, i64 skip, i64 then) {
      if (few) return few_tiles(Linear<u16>{w, a.x, y - from, bias, a.rows, width, a.k}, a.x, from, to);
      const Linear<u16> part{w, a.x, y - skip - from, bias ? bias - skip : nullptr, a.rows, width, a.k};
      many_tiles(part, both, a.x, space, skip + from, skip + to, then, first, last);
    };
    product(a.gate, a.gate_bias, g, 0, a.n + from);
    product(a.up, a.up_bias, up, a.n, next);
    for (i64 r = row; r < a.rows && r < last * HEIGHT; r++)
      gate_run(Gate<u16>{g + r * width, up + r * width, a.y + r * a.n + from, width, a.act, a.amount}, 0, width);
  }
}
#endif
