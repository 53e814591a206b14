// Attention of many rows of one text, as a prompt has: each row has the bits that it has alone, in attend.h.
//
// The one idea: `score` has a partial sum of one key in each lane, and adds them as a tree at the end. Here the lanes are keys, as many.h's are
// columns: the same partial sums are computed one after another for a tile of queries and keys, and added in the same tree. A query is one row
// in one head of a group; those of a piece share each panel of keys that is woven for them, and each value that is loaded.
//
//     8 queries x 48 keys     scores of a tile, at once               (8 x 8 where vectors have 8 lanes)
//     one query's row         softmax, as of a lone row
//     6 queries x 2 pairs     sums of values, each over its own keys  (3 where vectors have 8 lanes)
#pragma once
#include "attend.h"
#include "many.h"

#if defined(__wasm__)  // a page's prompt comes row by row
constexpr i64 MANY_ROWS = INT64_MAX;
#else
constexpr i64 MANY_ROWS = 4;
#endif
// QUERIES: those of a piece, since weaving a panel of keys costs what a dozen of them cost.  SUMMED: those that use a loaded value at once.
// NEAR_SCORES: bytes of scores that stay in the second cache; of a long text a piece takes fewer queries at a time.
constexpr i64 QUERIES = 96, NEAR_SCORES = 512 << 10;
constexpr int SUMMED = LANES == 16 ? 6 : 3, TREE = LANES == 16 ? 4 : 3;  // TREE: the depth of `eight`'s tree

// Return the index of a lane's partial sum, in the order in which `eight` adds neighbours.
static inline i64 leaf_of_eight(i64 lane) { return LANES == 16 ? lane % 8 * 2 + lane / 8 : lane; }
static inline i64 woven_for_scores(i64 k, i64 stride) { return LANES * (padded(k) / PAIR * 2 * stride + 16); }

// Write eight rows of k numbers leaf by leaf, as `weave` does for a product. load(r, i, a, b): load the pair at i of row r.
template <class F>
static void weave_for_scores(F load, i64 rows, i64 k, i64 stride, float* to) {
  const i64 size = padded(k) / PAIR * 2 * stride + 16;
  i64 at[2][LANES];
  for (i64 v = 0; v < 2; v++)
    for (i64 l = 0; l < LANES; l++) at[v][l] = leaf_of_eight(l) * size + v * stride;
  for (i64 i = 0; i < k; i += PAIR, to += 2 * stride) {
    Eight each[2][16];
    for (i64 r = 0; r < 8; r++) {
      V a = set(0.f), b = a;
      if (r < rows) load(r, i, a, b);
      halves(a, each[0] + r), halves(b, each[1] + r);
    }
    for (i64 v = 0; v < 2; v++)
      for (i64 h = 0; h < LANES; h += 8) transpose(each[v] + h, to, at[v] + h);
  }
}

// How the rows of a call are cut: each piece takes `rows` of them and a part of a group's heads.
struct Cut {
  i64 shared, parts, rows, blocks;  // heads of a group; parts of a group; rows of a block; blocks
  template <class A>
  explicit Cut(const A& a) : shared(a.heads / a.groups), parts(::parts(shared, HIGH)) {
    rows = QUERIES / ::parts(shared, parts), blocks = ::parts(a.rows, rows);
  }
};

// The queries of a `gather` that see different values.
struct Apart {
  const i64 *first, *past, *at;
  static constexpr bool ALIKE = false;
  i64 from(int h) const { return first[h]; }
  i64 to(int h) const { return past[h]; }
  i64 place(int h) const { return at[h]; }
};

// Attend from heads h ... h + heads - 1 of `count` rows from row r on, to the keys that these see together.
template <class T, class S>
struct Together {
  const Attend<T, S>& a;
  i64 r, count, h, heads, queries, from = 0, all = 0, pitch = 0;
  i64 *keys, *values, *first, *past, *places;  // first, past: of each query, indices of keys.  places: of its z
  float *k_scales, *v_scales, *norm, *q, *panel, *scores;

  Together(const Attend<T, S>& a, i64 r, i64 count, i64 h, i64 heads, i64 g) : a(a), r(r), count(count), h(h), heads(heads), queries(count * heads) {
    i64 to = -1;
    for (i64 i = r; i < r + count; i++) {
      const i64 p = a.positions[i];
      if (p < 0) continue;
      const i64 begin = a.first(p), end = begin + a.seen(p);
      from = to < 0 || begin < from ? begin : from, to = end > to ? end : to;
    }
    all = to < 0 ? 0 : to - from;
    if (a.columns) from = a.start, all = a.columns;
    const i64 size = parts(all, PANEL) * PANEL, tiles = parts(queries, HIGH);
    pitch = size + LANES;
    q = scratch(6 * size + 8 * queries + tiles * woven_for_scores(a.key, HIGH) + woven_for_scores(a.key, PANEL) + HIGH * padded(a.key) + queries * pitch);
    panel = q + tiles * woven_for_scores(a.key, HIGH), scores = panel + woven_for_scores(a.key, PANEL) + HIGH * padded(a.key);
    keys = (i64*)(scores + queries * pitch), values = keys + size, first = values + size, past = first + queries, places = past + queries;
    k_scales = (float*)(places + queries), v_scales = k_scales + size, norm = v_scales + size;
    find_keys(a, a.table, g, from, all, keys, values, k_scales, v_scales);
    for (i64 i = 0; i < queries; i++) {
      const i64 row = r + i / heads, p = a.positions[row];
      first[i] = p < 0 ? 0 : a.first(p) - from, past[i] = p < 0 ? 0 : first[i] + a.seen(p), norm[i] = 0.f;
      places[i] = (row * a.heads + h + i % heads) * a.value;
    }
  }

  // Weave the queries, a tile of HIGH after another.
  void weave_queries() {
    float* plain = scores - HIGH * padded(a.key);
    for (i64 i = 0; i < queries; i += HIGH) {
      const i64 some = queries - i < HIGH ? queries - i : HIGH;
      for (i64 j = 0; j < some; j++) arrange_for<S>(a.q + ((r + (i + j) / heads) * a.heads + h + (i + j) % heads) * a.key, plain + j * padded(a.key), a.key);
      const auto load = [&](i64 j, i64 k, V& x, V& y) { pair(plain + j * padded(a.key) + k, x, y); };
      weave_for_scores(load, some, a.key, HIGH, q + i / HIGH * woven_for_scores(a.key, HIGH));
    }
  }

  // Compute the scores of keys j ... j + PANEL - 1, where any query sees one of them or a table shows it.
  void score_panel(i64 j) {
    const i64 steps = padded(a.key) / PAIR * 2;
    bool woven = false;
    Tile tile;
    for (i64 i = 0; i < queries; i += HIGH) {
      bool met = a.columns > 0;
      for (i64 t = i; t < i + HIGH && t < queries; t++) met = met || (first[t] < j + PANEL && past[t] > j);
      if (!met) continue;
      for (i64 c = 0; c < PANEL && !woven; c += 8) {
        const auto load = [&](i64 t, i64 k, V& x, V& y) { pair(a.k + keys[j + c + t] + k, x, y, a.key - k); };
        weave_for_scores(load, all - j - c < 8 ? all - j - c : 8, a.key, PANEL, panel + c);
      }
      woven = true;
      for (i64 l = 0; l < LANES; l++) grow<float>(q + i / HIGH * woven_for_scores(a.key, HIGH), panel, steps, l, tile);
      for (i64 t = 0; t < HIGH && i + t < queries; t++)
        for (i64 c = 0; c < WIDE; c++) store(scores + (i + t) * pitch + j + c * LANES, tile.left[TREE][t][c] * set((float)a.scale));
    }
  }

  void run() {
    weave_queries();
    for (i64 j = 0; j < all; j += PANEL) score_panel(j);
    for (i64 i = 0; i < queries; i++) {
      const Reach to{from, all, first[i], past[i] - first[i], keys, values, k_scales, v_scales};
      if (to.seen) norm[i] = share_out(a, r + i / heads, h + i % heads, to, scores + i * pitch);
    }
    const auto sum = [&](auto some, i64 i) {
      sum_up<S, some>(a.v, scores + i * pitch, pitch, values, Apart{first + i, past + i, places + i}, norm + i, out_of<S>(a.z), a.value);
    };
    i64 i = 0;
    for (; i + SUMMED <= queries; i += SUMMED) sum(std::integral_constant<int, SUMMED>{}, i);
    for (; i < queries; i++) sum(std::integral_constant<int, 1>{}, i);
  }
};

template <class T, class S>
static void attend_together(const Attend<T, S>& a, i64 job) {
  const Cut cut(a);
  // a group's keys stay in the cache from block to block; the last rows, which see the most, come first
  const i64 g = job / cut.blocks / cut.parts, part = job / cut.blocks % cut.parts, block = cut.blocks - 1 - job % cut.blocks;
  const i64 h = g * cut.shared + part * cut.shared / cut.parts, heads = g * cut.shared + (part + 1) * cut.shared / cut.parts - h;
  const i64 end = (block + 1) * cut.rows < a.rows ? (block + 1) * cut.rows : a.rows;
  i64 longest = 1;
  for (i64 r = block * cut.rows; r < end; r++) longest = a.positions[r] >= longest ? a.positions[r] + 1 : longest;
  i64 step = NEAR_SCORES / 4 / (longest * heads);
  if (step < 1) step = 1;
  for (i64 r = block * cut.rows; r < end; r += step) Together<T, S>(a, r, end - r < step ? end - r : step, h, heads, g).run();
}

// ---- attend, by the rows at hand
template <class T, class S>
static i64 rows_pieces(const Attend<T, S>& a) {
  if (a.pages || a.rows < MANY_ROWS) return attend_few_pieces(a);
  const Cut cut(a);
  return a.groups * cut.parts * cut.blocks;
}
template <class T, class S>
static void attend_rows(const Attend<T, S>& a, i64 job) {
  if constexpr (MANY_ROWS < INT64_MAX)
    if (!a.pages && a.rows >= MANY_ROWS) return attend_together(a, job);
  attend_few(a, job);
}
template <class T, class S = T>
static i64 attend_pieces(const Attend<T, S>& a) {
  return pieces_of_texts(a, rows_pieces<T, S>);
}
template <class T, class S = T>
static void attend(const Attend<T, S>& a, Work& work) {
  each_text(a, work, rows_pieces<T, S>, attend_rows<T, S>);
}
