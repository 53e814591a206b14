// Attention of many rows of one text by the processor's tiles (AMX), in bf16: as exact as torch's, with other last bits than attend.h.
//
// The one idea: both products are tiles of the processor, and a row's softmax lies between them. A piece takes rows of one text in all heads
// of a group; they share the keys and values that are woven for them, from a position that divides by STEP on. A key that a row does not
// see adds 0 to its sums, so that a row has the same bits with any other rows.
//
//     32 queries x 32 keys      scores, then the next 32 keys
//     one query's row           e^(score - top), rounded to bf16, where its scores lay; their sum in float
//     32 queries x 32 numbers   sums of values, over all keys
#pragma once
#include "attend_row_tiles.h"

#if defined(__AMX_BF16__)
constexpr i64 TILE_QUERIES = 384;  // of a piece, since weaving a key costs what two dozen queries cost
constexpr i64 TILE_NUMBERS = HEIGHT * STEP;  // of a tile in bf16

// Weave rows two by two: a word of both rows' numbers, STEP rows a tile, and their other numbers in the next tile. at: the rows' offsets in x.
static void weave_pairs(const u16* x, const i64* at, i64 rows, i64 width, u16* to) {
  for (i64 r = 0; r < rows; r += STEP)
    for (i64 i = 0; i < width; i += HEIGHT)
      for (i64 j = r; j < r + STEP; j += 2, to += 2 * HEIGHT) {
        const V even = j < rows ? load(x + at[j] + i) : set(0.f), odd = j + 1 < rows ? load(x + at[j + 1] + i) : set(0.f);
        store_bits(to, either(as_bits(odd), down16(as_bits(even))));
      }
}

// The cells of two tiles of queries, one below the other, times two tiles of keys or numbers, side by side.
struct FourTiles {
  FourTiles() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  // Add the products of 32 rows in bf16, `stride` numbers apart, and two woven tiles, `next` numbers apart.
  void add(const u16* rows, i64 stride, const u16* woven, i64 next) const {
    _tile_loadd(4, rows, 2 * stride);
    _tile_loadd(5, rows + HEIGHT * stride, 2 * stride);
    _tile_loadd(6, woven, 64);
    _tile_loadd(7, woven + next, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  void store(float* to, i64 pitch) const {
    _tile_stored(0, to, 4 * pitch);
    _tile_stored(1, to + HEIGHT, 4 * pitch);
    _tile_stored(2, to + HEIGHT * pitch, 4 * pitch);
    _tile_stored(3, to + HEIGHT * pitch + HEIGHT, 4 * pitch);
  }
};

// The rows r ... r + count - 1 of one text in the heads of group g.
struct TilePiece {
  const Attend<u16>& a;
  i64 r, shared, h, queries, from, all, pitch;  // from: the first key's position.  all: keys, up to a multiple of STEP
  u16 *q, *k, *v;
  float *scores, *sums;

  TilePiece(const Attend<u16>& a, i64 r, i64 count, i64 g) : a(a), r(r), shared(a.heads / a.groups), h(g * shared), queries(count * shared) {
    i64 to = from = 0;
    for (i64 i = r; i < r + count; i++) {
      const i64 begin = a.first(a.positions[i]), end = begin + a.seen(a.positions[i]);
      from = i == r || begin < from ? begin : from, to = end > to ? end : to;
    }
    if (a.columns) from = a.start, to = a.start + a.columns;
    from = from / STEP * STEP, all = parts(to - from, STEP) * STEP, pitch = all + LANES;
    const i64 tiles = parts(queries, STEP) * STEP;
    scores = scratch(STEP * pitch + (tiles * a.key + all * (a.key + a.value)) / 2 + 4 * all + STEP * a.value);
    sums = scores + STEP * pitch, k = (u16*)(sums + STEP * a.value), v = k + all * a.key, q = v + all * a.value;
    i64 *keys = (i64*)(q + tiles * a.key), *values = keys + all;
    find_keys(a, a.table, g, from, to - from, keys, values, (float*)nullptr, (float*)nullptr);
    for (i64 t = 0; t < to - from; t += HEIGHT) weave_rows([&](i64 s) { return a.k + keys[s]; }, to - from, a.key, t, HEIGHT, k + t * a.key);
    weave_pairs(a.v, values, to - from, a.value, v);
    for (i64 i = 0; i < tiles; i++) {
      if (i < queries) std::memcpy(q + i * a.key, a.q + ((r + i / shared) * a.heads + h + i % shared) * a.key, a.key * sizeof(u16));
      else std::memset(q + i * a.key, 0, a.key * sizeof(u16));
    }
  }
  i64 position(i64 i) const { return a.positions[r + i / shared]; }

  // Compute the scores of queries [i, i + 32) with keys [low, high), before they are scaled.
  void score(i64 i, i64 low, i64 high) const {
    asm volatile("" ::: "memory");  // GCC does not know that a tile's load reads memory
    for (i64 t = low; t < high; t += STEP) {
      const FourTiles cells;
      for (i64 j = 0; j < a.key; j += STEP) cells.add(q + i * a.key + j, a.key, k + t * a.key + j * HEIGHT, HEIGHT * a.key);
      cells.store(scores + t - low, pitch);
    }
  }

  // Replace the scores of query i with keys [low, high), in row `row`, by e^(score - top) in bf16, 0 of keys it does not see. Returns their sum.
  float soften(i64 i, i64 row, i64 low, i64 high) const {
    const i64 p = position(i), first = a.first(p) - from - low, past = first + a.seen(p), end = high - low;
    const float *own = scores + row * pitch, scale = (float)a.scale;
    u16* shares = (u16*)own;
    const i64 inner = parts(first, LANES) * LANES, outer = past / LANES * LANES;  // between them a row sees all keys
    const auto each = [&](auto f) __attribute__((always_inline)) {
      const auto some = [&](i64 t) {
        const i64 begin = first - t, stop = past - t;
        return (__mmask16)((stop < LANES ? stop > 0 ? (1u << stop) - 1 : 0u : 0xffffu) & (begin > 0 ? begin < LANES ? ~((1u << begin) - 1) : 0u : ~0u));
      };
      i64 t = 0;
      for (; t < inner; t += LANES) f(t, some(t));
      for (; t < outer; t += LANES) f(t, (__mmask16)0xffff);
      for (; t < end; t += LANES) f(t, some(t));
    };
    V top = set(-INFINITY), sum = set(0.f);
    each([&](i64 t, __mmask16 m) __attribute__((always_inline)) { top = _mm512_mask_max_ps(top, m, top, load(own + t)); });
    const float sink = a.sinks ? get(a.sinks + h + i % shared) : -INFINITY, own_top = largest(top) * scale, most = sink > own_top ? sink : own_top;
    const V by = set(scale * LOG2E), less = set(-most * LOG2E);
    each([&](i64 t, __mmask16 m) __attribute__((always_inline)) {  // a share takes half the place of a score: what is written has been read
      const V e = _mm512_maskz_mov_ps(m, power(fma(load(own + t), by, less)));
      sum = sum + e;
      _mm256_storeu_si256((__m256i*)(shares + t), (__m256i)_mm512_cvtneps_pbh(e));
    });
    return total(sum) + (a.sinks ? std::exp(sink - most) : 0.f);
  }

  // Write what a watch keeps of query i, whose scores lie in row `row`: before they are softened, and then, times `norm`, as its pattern.
  void keep_scores(i64 i, i64 row) const {
    const float* own = scores + row * pitch + a.start - from;
    u16* to = a.scores + ((h + i % shared) * a.rows + r + i / shared) * a.columns;
    steps(0, a.columns, [&](i64 t, i64 n) { store(to + t, load(own + t, n) * set((float)a.scale), n); });
  }
  void keep_pattern(i64 i, i64 row, float norm) const {
    const u16* own = (const u16*)(scores + row * pitch) + a.start - from;
    u16* to = a.pattern + ((h + i % shared) * a.rows + r + i / shared) * a.columns;
    steps(0, a.columns, [&](i64 t, i64 n) { store(to + t, load(own + t, n) * set(norm), n); });
  }

  // Compute the sums of values over keys [low, high), with the shares in the rows of 32 queries.
  void gather(i64 low, i64 high) const {
    asm volatile("" ::: "memory");
    for (i64 c = 0; c < a.value; c += STEP) {
      const FourTiles cells;
      for (i64 t = low; t < high; t += STEP) cells.add((const u16*)scores + t - low, 2 * pitch, v + t * a.value + c * STEP, TILE_NUMBERS);
      cells.store(sums + c, a.value);
    }
  }

  void run() {
    const Tiles tiles(HEIGHT);
    for (i64 i = 0; i < queries; i += STEP) {
      const i64 end = i + STEP < queries ? i + STEP : queries;
      i64 low = all, high = 0;
      for (i64 j = i; j < end; j += shared - j % shared) {
        const i64 first = a.first(position(j)) - from, past = first + a.seen(position(j));
        low = first < low ? first : low, high = past > high ? past : high;
      }
      low = a.columns ? 0 : low / STEP * STEP, high = a.columns ? all : parts(high, STEP) * STEP;
      score(i, low, high);
      float norm[STEP];
      for (i64 j = i; j < end; j++) {
        if (a.columns) keep_scores(j, j - i);
        const float sum = soften(j, j - i, low, high);
        norm[j - i] = sum > 0 ? 1.f / sum : 0.f;  // 0: a row that sees no keys
        if (a.columns) keep_pattern(j, j - i, norm[j - i]);
      }
      gather(low, high);
      for (i64 j = i; j < end; j++) {
        u16* z = a.z + ((r + j / shared) * a.heads + h + j % shared) * a.value;
        for (i64 c = 0; c < a.value; c += LANES) store(z + c, load(sums + (j - i) * a.value + c) * set(norm[j - i]));
      }
    }
  }
};

static i64 tile_rows(const Attend<u16>& a) { return parts(TILE_QUERIES, a.heads / a.groups); }
static i64 tiled_pieces(const Attend<u16>& a) {
  if (!a.pages && a.rows > FEW) return a.groups * parts(a.rows, tile_rows(a));
  return grouped(a) ? row_tile_pieces(a) : rows_pieces(a);
}
static void attend_tiled(const Attend<u16>& a, i64 job) {
  if (a.pages || a.rows <= FEW) return grouped(a) ? attend_row_tiles(a, job) : attend_rows(a, job);
  const i64 rows = tile_rows(a), blocks = parts(a.rows, rows), g = job / blocks;
  const i64 r = (blocks - 1 - job % blocks) * rows;  // the last rows, which see the most, come first
  TilePiece(a, r, a.rows - r < rows ? a.rows - r : rows, g).run();
}
static i64 attend_tiles_pieces(const Attend<u16>& a) { return pieces_of_texts(a, tiled_pieces); }
static void attend_tiles(const Attend<u16>& a, Work& work) { each_text(a, work, tiled_pieces, attend_tiled); }
#endif
