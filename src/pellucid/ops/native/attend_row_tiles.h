// Attention of one row of a text, in all heads of a group, by the processor's tiles (AMX), in bf16: as exact as attend_tiles.h.
//
// The one idea: keys are tiles as they lie in their pages, so that a group's queries meet sixteen keys at once, and each query has a lane:
// its softmax needs no sum across lanes. Then 32 keys' shares are turned, a row for each query, and meet the values of these keys, woven two
// by two. Which 32 keys does not depend on where the row's keys begin, so a row's bits do not depend on other rows, nor on a watch.
//
//     16 keys x 8 queries       scores, then the next 16 keys
//     2 keys x 8 queries        e^(score - top), a word of two in bf16 for each query, where their scores lay
//     8 queries x 32 keys       the same words, turned
//     8 queries x 16 numbers    sums of values, 32 keys at a time
//
// Nothing is prefetched: 64 texts of 400 tokens take 7.3 us a piece with it and without, of one text, in the caches, 3.9 and 3.7.
#pragma once
#include "attend_many.h"

#if defined(__AMX_BF16__)
// Return 2^x of x up to 0, relative error below 5e-5, which bf16 has 40 times.
static inline V power(V x) {
  const V n = nearest(x), r = x - n;
  V p = set(9.618129e-3f);
  for (float c : {5.5504109e-2f, 0.24022651f, 0.69314718f, 1.f}) p = fma(p, r, set(c));
  return _mm512_scalef_ps(p, n);
}
constexpr float LOG2E = 1.44269504f;

constexpr i64 GROUPED = 4;  // heads of a group from which this is faster than attend.h; Python has the same number

// Sixteen rows of a pool, `stride` numbers apart.
struct PoolTile {
  const u16* at;
  i64 stride;
};

// The heads h ... h + count - 1, of group g, of row r. SIDE: lanes of a key's scores, 8 or 16.  from: the position of key 0.
// low to high: the keys that get scores.  first to past: those that the row sees.  tiles: where each sixteen keys begin in a pool, in rows of one
// group, if a page holds whole sixteens.
template <int SIDE>
struct RowPiece {
  const Attend<u16>& a;
  const i64 r, g, h, count, from, low, high, first, past;
  float* scores;
  u16 *q, *copy;
  i64* tiles;

  RowPiece(const Attend<u16>& a, i64 r, i64 g, i64 h, i64 count, i64 begin, i64 end)
      : a(a), r(r), g(g), h(h), count(count), from(begin / STEP * STEP), low(begin - from), high(end - from),
        first(a.first(a.positions[r]) - from), past(first + a.seen(a.positions[r])) {
    const i64 all = parts(high, STEP) * STEP;
    scores = scratch(all * SIDE + (a.key * SIDE + HEIGHT * a.key) / 2 + 2 * all / HEIGHT);
    q = (u16*)(scores + all * SIDE), copy = q + a.key * SIDE, tiles = (i64*)(copy + HEIGHT * a.key);
    const u16* own = a.q + (r * a.heads + h) * a.key;
    weave_rows([&](i64 j) { return own + j * a.key; }, count, a.key, 0, SIDE, q);
    if (a.size % HEIGHT) return;
    i64 t = low / HEIGHT * HEIGHT, page = (from + t) / a.size, in_page = (from + t) % a.size;
    for (; t < high; t += HEIGHT) {
      tiles[t / HEIGHT] = ((a.table[r * a.pages + page] * a.size + in_page) * a.groups) + g;
      if ((in_page += HEIGHT) == a.size) in_page = 0, page++;
    }
  }

  // Return key t's row of a pool.
  const u16* row(const u16* pool, i64 width, i64 t) const {
    if (a.size % HEIGHT == 0) return pool + (tiles[t / HEIGHT] + t % HEIGHT * a.groups) * width;
    return pool + ((a.table[r * a.pages + (from + t) / a.size] * a.size + (from + t) % a.size) * a.groups + g) * width;
  }
  // Return the rows of key t and the fifteen after it. Those outside `low` to `high` are of no key.
  PoolTile keys(i64 t) const {
    if (a.size % HEIGHT == 0) return {row(a.k, a.key, t), a.groups * a.key};
    for (i64 j = t; j < t + HEIGHT; j++) std::memcpy(copy + (j - t) * a.key, row(a.k, a.key, j < low ? low : j < high ? j : high - 1), a.key * sizeof(u16));
    return {copy, a.key};
  }

  void score() const {
    const Tiles shapes(SIDE);
    for (i64 t = low / HEIGHT * HEIGHT; t < high; t += HEIGHT) {
      const PoolTile rows = keys(t);
      asm volatile("" ::: "memory");  // GCC does not know that a tile's load reads memory
      _tile_zero(0);
      for (i64 i = 0; i < a.key; i += STEP) {
        _tile_loadd(4, rows.at + i, 2 * rows.stride);
        _tile_loadd(6, q + i * SIDE, 4 * SIDE);
        _tile_dpbf16ps(0, 4, 6);
      }
      _tile_stored(0, scores + t * SIDE, 4 * SIDE);
    }
  }

  // Call f(vector, mask) for the scores of keys that the row sees, pair by pair. mask: the lanes of those keys.
  template <class F>
  [[gnu::always_inline]] inline void pairs(F f) const {
    const auto seen = [&](i64 t) { return first <= t && t < past; };
    for (i64 n = first / 2; n < parts(past, 2); n++) {
      if constexpr (SIDE == 8) f(n, (__mmask16)((seen(2 * n) ? 0x00ff : 0) | (seen(2 * n + 1) ? 0xff00 : 0)));
      else
        for (int i = 0; i < 2; i++) f(2 * n + i, (__mmask16)(seen(2 * n + i) ? 0xffff : 0));
    }
  }
  // Return what `meet` makes of both keys' lanes, in every lane of a query.
  template <class F>
  static V folded(V x, F meet) {
    return SIDE == 8 ? meet(x, _mm512_shuffle_f32x4(x, x, 0x4e)) : x;
  }

  // Replace the scores by shares, a word of two keys' for each query. Returns what to multiply the sums of values by, a lane for each query.
  V soften() const {
    V top = set(-INFINITY), sum = set(0.f);
    pairs([&](i64 n, __mmask16 m) __attribute__((always_inline)) { top = _mm512_mask_max_ps(top, m, top, load(scores + n * LANES)); });
    alignas(64) float sinks[LANES];
    for (i64 j = 0; j < LANES; j++) sinks[j] = a.sinks && j % SIDE < count ? get(a.sinks + h + j % SIDE) : -INFINITY;
    const V most = max(folded(top, [](V x, V y) { return max(x, y); }) * set((float)a.scale), load(sinks));
    const V by = set((float)a.scale * LOG2E), less = most * set(-LOG2E);
    uint32_t* to = (uint32_t*)scores;  // a word takes half the place of two scores: what is written has been read
    __m256i even = _mm256_setzero_si256();
    pairs([&](i64 n, __mmask16 m) __attribute__((always_inline)) {
      const V e = _mm512_maskz_mov_ps(m, power(fma(load(scores + n * LANES), by, less)));
      sum = sum + e;
      const __m256i half = (__m256i)_mm512_cvtneps_pbh(e);
      if constexpr (SIDE == 8) {
        const __m128i x = _mm256_castsi256_si128(half), y = _mm256_extracti128_si256(half, 1);
        _mm_storeu_si128((__m128i*)(to + n * SIDE), _mm_unpacklo_epi16(x, y));
        _mm_storeu_si128((__m128i*)(to + n * SIDE + 4), _mm_unpackhi_epi16(x, y));
      } else if (n % 2 == 0) even = half;
      else store_bits(to + n / 2 * SIDE, _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)));
    });
    sum = folded(sum, [](V x, V y) { return x + y; });
    if (a.sinks) sum = sum + power((load(sinks) - most) * set(LOG2E));
    return set(1.f) / sum;
  }

  // Write what a watch keeps: scores before they are softened, and then shares times `norm`, 0 of keys that the row does not see.
  void keep_scores() const {
    for (i64 j = 0; j < count; j++)
      for (i64 t = 0; t < a.columns; t++) put(a.scores + ((h + j) * a.rows + r) * a.columns + t, scores[(low + t) * SIDE + j] * (float)a.scale);
  }
  void keep_pattern(const float* norm) const {
    const u16* shares = (const u16*)scores;
    for (i64 j = 0; j < count; j++)
      for (i64 t = low; t < high; t++) {
        const float share = first <= t && t < past ? get(shares + (t / 2 * SIDE + j) * 2 + t % 2) : 0.f;
        put(a.pattern + ((h + j) * a.rows + r) * a.columns + t - low, share * norm[j]);
      }
  }

  // Write a query's shares of keys [t, t + 32) as a row.
  void turn(i64 t, uint32_t (*rows)[HEIGHT]) const {
    static constexpr i64 AT[8] = {0, HEIGHT, 2 * HEIGHT, 3 * HEIGHT, 4 * HEIGHT, 5 * HEIGHT, 6 * HEIGHT, 7 * HEIGHT};
    for (i64 j = 0; j < SIDE; j += 8)
      for (i64 n = 0; n < HEIGHT; n += 8) {
        __m256 words[8];
        for (i64 i = 0; i < 8; i++) {
          const i64 pair = t / 2 + n + i;
          words[i] = first / 2 <= pair && pair < parts(past, 2) ? _mm256_loadu_ps(scores + pair * SIDE + j) : _mm256_setzero_ps();
        }
        transpose(words, (float*)rows[j] + n, AT);
      }
  }
  // Weave numbers c ... of the values of keys [t, t + 32), 32 numbers WIDE times: words of two keys' numbers, in each 128 bits of one tile numbers
  // 0 to 3 of eight, in those of the next tile numbers 4 to 7.
  template <int WIDE>
  void weave(i64 t, i64 c, I (*tiles)[HEIGHT]) const {
    const auto add = [&](i64 s, int i, I even, I odd) {
      tiles[2 * i][s / 2] = _mm512_unpacklo_epi16(even, odd), tiles[2 * i + 1][s / 2] = _mm512_unpackhi_epi16(even, odd);
    };
    if (first <= t && t + STEP <= past && a.size % HEIGHT == 0) {
      const i64 stride = a.groups * a.value;
      for (i64 n = 0; n < STEP; n += HEIGHT) {
        const u16* v = row(a.v, a.value, t + n) + c;
        for (i64 s = 0; s < HEIGHT; s += 2, v += 2 * stride)
          for (int i = 0; i < WIDE; i++) add(n + s, i, load_bits(v + i * STEP), load_bits(v + stride + i * STEP));
      }
      return;
    }
    // memory of other keys may hold anything: 0 times it is not 0
    const auto value = [&](i64 s, int i) { return first <= s && s < past ? load_bits(row(a.v, a.value, s) + c + i * STEP) : no_bits(); };
    for (i64 s = 0; s < STEP; s += 2)
      for (int i = 0; i < WIDE; i++) add(s, i, value(t + s, i), value(t + s + 1, i));
  }
  // Set numbers c ... of z, 32 of them WIDE times.
  template <int WIDE>
  void gather(i64 c, const float* norm) const {
    const Tiles shapes(SIDE == 8 ? EIGHT_HIGH : WHOLE_GROUP);
    alignas(64) uint32_t rows[SIDE][HEIGHT];
    alignas(64) float sums[2 * WIDE][SIDE][HEIGHT];
    I values[2 * WIDE][HEIGHT];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (i64 t = first / STEP * STEP; t < past; t += STEP) {
      turn(t, rows);
      weave<WIDE>(t, c, values);
      asm volatile("" ::: "memory");  // GCC does not know that a tile's load reads memory
      _tile_loadd(4, rows, 64);
      _tile_loadd(6, values[0], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, values[1], 64);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (WIDE == 2) {
        _tile_loadd(6, values[2], 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, values[3], 64);
        _tile_dpbf16ps(3, 4, 7);
      }
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    if constexpr (WIDE == 2) {
      _tile_stored(2, sums[2], 64);
      _tile_stored(3, sums[3], 64);
    }
    asm volatile("" ::: "memory");
    alignas(64) static constexpr int ORDER[2][LANES] = {
        {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23}, {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31}};
    for (i64 j = 0; j < count; j++)
      for (int i = 0; i < 2 * WIDE; i++) {
        u16* z = a.z + (r * a.heads + h + j) * a.value + c + i * LANES;
        store(z, _mm512_permutex2var_ps(load(sums[i / 2 * 2][j]), load_bits(ORDER[i % 2]), load(sums[i / 2 * 2 + 1][j])) * set(norm[j]));
      }
  }

  void run() const {
    score();
    if (a.columns) keep_scores();
    alignas(64) float norm[LANES];
    store(norm, soften());
    if (a.columns) keep_pattern(norm);
    i64 c = 0;
    for (; c + 2 * STEP <= a.value; c += 2 * STEP) gather<2>(c, norm);
    if (c < a.value) gather<1>(c, norm);
  }
};

// ---- rows that each have a text, or few of one: pieces of one row each, in up to HEIGHT heads of a group
static bool grouped(const Attend<u16>& a) { return a.heads / a.groups >= GROUPED; }
static i64 row_tile_pieces(const Attend<u16>& a) { return a.rows * a.groups * parts(a.heads / a.groups, HEIGHT); }
static void attend_row_tiles(const Attend<u16>& a, i64 job) {
  const i64 shared = a.heads / a.groups, parts = ::parts(shared, HEIGHT), jobs = a.groups * parts;
  // the rows of one text use a group's keys one after another, while these are in the cache
  const i64 r = a.pages ? job / jobs : job % a.rows, which = a.pages ? job % jobs : job / a.rows;
  const i64 g = which / parts, part = which % parts, j = part * shared / parts, count = (part + 1) * shared / parts - j, h = g * shared + j;
  const i64 p = a.positions[r], begin = a.columns ? a.start : a.first(p), end = a.columns ? a.start + a.columns : begin + a.seen(p);
  // a row that sees no keys gives 0
  if (p < 0) return (void)std::memset(a.z + (r * a.heads + h) * a.value, 0, count * a.value * sizeof(u16));
  if (count <= 8) RowPiece<8>(a, r, g, h, count, begin, end).run();
  else RowPiece<16>(a, r, g, h, count, begin, end).run();
}
#endif
