// Products of many rows and weights in blocks, in the tiles of bf16 (AMX): x is rounded to bf16, and so are the weight's values.
//
// The one idea: two tiles' share of w, as many_tiles.h takes it, is dequantised into the first cache just before all groups of x meet it. So
// memory is read in blocks, and what a number costs to dequantise is shared by up to 512 rows. Both roundings lose at most 2^-9 of a number,
// less than int8 loses of x in blocks.h, whose bits these are not.
#pragma once
#include "blocks.h"
#include "many.h"

#if defined(__AMX_BF16__)
// Rows of codes and scales as `many_tiles` reads them: dequantised into memory of this thread.
template <int BITS>
struct BlockRows {
  const u8* w;
  const u16* scales;
  i64 k;
  u16* near;
  i64 bytes() const { return (k * BITS + 7) / 8; }
  void prefetch(i64 row, i64 i) const {
    if (i * BITS % 512 == 0) prefetch_l2(w + row * bytes() + i * BITS / 8);
  }
  // Return numbers [i, i + width) of the two tiles of rows from j on. Rows and numbers that are missing are zeros.
  TileRows rows(i64 j, i64 i, i64 count, i64 width) const {
    const i64 whole = parts(width, STEP) * STEP, blocks = parts(k, GROUP), some = whole / GROUP;
    for (i64 r = 0; r < count; r++) {
      const u8* from = w + (j + r) * bytes() + i * BITS / 8;
      const u16* scale = scales + (j + r) * blocks + i / GROUP;
      u16* to = near + r * whole;
      for (i64 b = 0; b < some; b += LANES) {
        alignas(64) float own[LANES];
        store(own, halves(scale + b, some - b));
        for (i64 l = 0; l < LANES && b + l < some; l++, to += GROUP) values(from + (b + l) * GROUP * BITS / 8, width - (b + l) * GROUP, own[l], to);
      }
    }
    std::memset(near + count * whole, 0, (PAIR_OF_TILES - count) * whole * sizeof(u16));
    return {near, PAIR_OF_TILES, whole, whole};
  }

 private:
  // Write a block's 32 values, zeros from `left` on.
  static void values(const u8* codes, i64 left, float scale, u16* to) {
    constexpr i64 EACH = GROUP * BITS / 8;
    alignas(32) u8 edge[EACH];
    if (left < GROUP) {
      std::memset(edge, BITS == 8 ? 0 : 0x88, EACH);
      std::memcpy(edge, codes, (left * BITS + 7) / 8);
      if (BITS == 4 && left % 2) edge[left / 2] = (edge[left / 2] & 15) | 0x80;
      codes = edge;
    }
    const V factor = set(scale);
    if constexpr (BITS == 8) {
      const V low = floats(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)codes))), high = floats(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)codes + 1)));
      _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high * factor, low * factor));
    } else {
      const I packed = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)codes));
      const V values = load(STORED), even = _mm512_permutexvar_ps(packed, values), odd = _mm512_permutexvar_ps(right(packed, 4), values);
      store_bits(to, pairs_of(even * factor, odd * factor));
    }
  }
  alignas(64) static constexpr float STORED[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
};

template <class T>
struct BlockMany {
  const u8* w;
  const u16 *scales, *x;  // x: woven
  T* y;
  const T* bias;
  i64 rows, n, k;
  FIELDS(w, scales, x, y, bias, rows, n, k)
  i64 chunk() const { return piece_columns(rows, n, k); }
};
template <int BITS, class T>
static i64 block_many_pieces(const BlockMany<T>& a) {
  return shared_pieces(a);
}
template <int BITS, class T>
static void block_many(const BlockMany<T>& a, Work& work) {
  const i64 most = parts(parts(a.k, STEP), parts(a.k, NEAR_K)) * STEP * PAIR_OF_TILES / 2;
  float* space = scratch(waiting_cells(a.rows, a.chunk()) + most);
  shared_tiles(a, BlockRows<BITS>{a.w, a.scales, a.k, (u16*)space}, a.x, space + most, work);
}

// ---- pack_tiles: weave the rows of x, in float, as bf16
static i64 pack_tiles_pieces(const Pack<float>& a) { return tile_groups(a.rows); }
static void pack_tiles(const Pack<float>& a, Work& work) { weave_groups(a, work); }
#endif
