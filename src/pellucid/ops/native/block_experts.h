// Experts with weights in blocks: rows sorted as in experts.h, products as in blocks.h.
//
// The one idea: a piece is a range of columns of every expert, so the weight of each chosen expert is read once, and no other's at all.
// Rows of x are rounded once, before all products. A row has the same bits in any batch.
#pragma once
#include "blocks.h"
#include "experts.h"

template <class T>
struct BlockExperts {
  const u8* w;
  const u16* scales;
  const T* x;
  T* y;
  const T* bias;
  const int32_t* ends;
  i64 rows, experts, n, k;
  FIELDS(w, scales, x, y, bias, ends, rows, experts, n, k)
  template <int BITS>
  i64 chunk() const {
    const i64 row = (k * BITS + 7) / 8 * (rows < experts ? rows : experts), many = (256 << 10) / row / 8 * 8, most = (n + 63) / 64 * 8;
    return many < 8 ? 8 : many > most ? most : many;
  }
};
template <int BITS, class T>
static i64 block_experts_pieces(const BlockExperts<T>& a) {
  return parts(a.n, a.template chunk<BITS>());
}
template <int BITS, class T>
static void block_experts(const BlockExperts<T>& a, Work& work) {
  const i64 chunk = a.template chunk<BITS>(), bytes = (a.k * BITS + 7) / 8;
  Rounded<BITS> x(a.k, a.rows);
  for (i64 r = 0; r < a.rows; r++) x.fill(r, a.x + r * a.k);
  for (i64 p; (p = work.next()) >= 0;)
    for (i64 e = 0, row = 0; e < a.experts; row = a.ends[e++]) {
      const i64 from = p * chunk, to = from + chunk < a.n ? from + chunk : a.n, end = a.ends[e];
      const BlockLinear<T> one{a.w + e * a.n * bytes, a.scales + e * a.n * x.blocks, a.x, a.y, a.bias ? a.bias + e * a.n : nullptr, end, a.n, a.k};
      block_tiles(one, x, row, from, to);
    }
}
