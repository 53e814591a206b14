// The product of linear.h for many rows: prompts, and large batches.
//
// The one idea: `dot` has a partial sum of one cell in each lane, and adds them as a tree at the end. Here the lanes are cells: the same
// partial sums, the leaves, are computed one after another for a tile of cells, and added in the same tree. Each loaded number serves a
// tile, and a cell has the bits that `dot` gives it. Where the processor multiplies bf16, a number here is a pair of them, as it is there.
//
//     lanes 0 to 3                     (l0 + l2) + (l1 + l3)                                a leaf's index: its lane's bits reversed
//     even and odd ones apart (SUMS)   ((e0 + o0) + (e2 + o2)) + ((e1 + o1) + (e3 + o3))    twice that
#pragma once
#include "linear.h"

constexpr i64 HIGH = 8, WIDE = LANES == 16 ? 3 : 1;  // a tile: rows, and vectors of columns. Its accumulators stay in registers
constexpr i64 PANEL = WIDE * LANES;
constexpr i64 FEW = 16;  // rows that `dot` takes
constexpr int DEPTH = 4;  // of the tree
constexpr i64 LEAVES = LANES * SUMS;

static inline i64 leaf(i64 lane, i64 odd) {
  constexpr int BITS = DEPTH + 1 - SUMS;
  i64 to = 0;
  for (int bit = 0; bit < BITS; bit++) to |= (lane >> bit & 1) << (BITS - 1 - bit);
  return SUMS * to + odd;
}

// A word is a float, or two neighbours in bf16, which are multiplied at once.  VECTORS, EACH: vectors, and words of a leaf, in a PAIR.
template <class X>
constexpr i64 VECTORS = sizeof(Loaded<X>) / sizeof(V);
template <class X>
constexpr i64 EACH = VECTORS<X>* LANES / LEAVES;
// Return the words from one leaf to the next, `stride` for each of its own. The 16 more keep leaves out of one cache set.
template <class X>
static inline i64 leaf_size(i64 k, i64 stride) {
  return padded(k) / PAIR * EACH<X> * stride + 16;
}
template <class X>
static inline i64 woven(i64 k, i64 stride) {
  return LEAVES * leaf_size<X>(k, stride);
}

// Write eight rows of k numbers as words, leaf by leaf: a word of each row, then `stride` on. Rows from `rows` on are zeros.
template <class T>
static void weave(const T* x, i64 rows, i64 k, i64 stride, float* to) {
  using X = Factor<T>;
  const i64 size = leaf_size<X>(k, stride);
  i64 at[VECTORS<X>][LANES];
  for (i64 v = 0; v < VECTORS<X>; v++)
    for (i64 l = 0; l < LANES; l++) at[v][l] = SUMS == 1 ? leaf(l, 0) * size + v * stride : leaf(l, v) * size;
  for (i64 i = 0; i < k; i += PAIR, to += EACH<X> * stride) {
    Eight a[VECTORS<X>][16];
    for (i64 r = 0; r < 8; r++) {
      Loaded<X> f{};
      if (r < rows) factor(x + r * k + i, f, k - i);
      const V* words = (const V*)&f;
      for (i64 v = 0; v < VECTORS<X>; v++) halves(words[v], a[v] + r);
    }
    for (i64 v = 0; v < VECTORS<X>; v++)
      for (i64 h = 0; h < LANES; h += 8) transpose(a[v] + h, to, at[v] + h);
  }
}

// ---- pack: weave the rows of x, eight at a time
template <class T>
struct Pack {
  const T* x;
  float* to;
  i64 rows, k;
  FIELDS(x, to, rows, k)
};
template <class T>
static i64 packed_words(i64 rows, i64 k) {
  if constexpr (TILED<T>) return tile_words(rows, k);
  return parts(rows, HIGH) * woven<Factor<T>>(k, HIGH);
}
template <class T>
static i64 pack_pieces(const Pack<T>& a) {
  if constexpr (TILED<T>) return tile_groups(a.rows);
  return parts(a.rows, HIGH);
}
template <class T>
static void pack(const Pack<T>& a, Work& work) {
  if constexpr (TILED<T>) return weave_groups(a, work);
  for (i64 p; (p = work.next()) >= 0;) weave(a.x + p * HIGH * a.k, a.rows - p * HIGH, a.k, HIGH, a.to + p * woven<Factor<T>>(a.k, HIGH));
}

// A tile's tree: at each level the left sums that wait for the right ones, at the top the results.
struct Tile {
  V left[DEPTH + 1][HIGH][WIDE];
};

// Compute leaf l of a tile from woven x and w, and add it to the tree. steps: words of a leaf.
template <class X>
static inline void grow(const float* x, const float* w, i64 steps, i64 l, Tile& tile) {
  V acc[HIGH][WIDE];
  for (int r = 0; r < HIGH; r++)
    for (int c = 0; c < WIDE; c++) acc[r][c] = set(0.f);
  x += l * (steps * HIGH + 16), w += l * (steps * PANEL + 16);
  for (i64 i = 0; i < steps; i++) {
    V a[WIDE];
    for (int c = 0; c < WIDE; c++) a[c] = load(w + i * PANEL + c * LANES);
    for (int r = 0; r < HIGH; r++) {
      const V b = set(x[i * HIGH + r]);
      for (int c = 0; c < WIDE; c++) add_product(a[c], b, acc[r][c], X());
    }
  }
  int level = 0;
  for (; l >> level & 1; level++)
    for (int r = 0; r < HIGH; r++)
      for (int c = 0; c < WIDE; c++) acc[r][c] = tile.left[level][r][c] + acc[r][c];
  for (int r = 0; r < HIGH; r++)
    for (int c = 0; c < WIDE; c++) tile.left[level][r][c] = acc[r][c];
}

// The plan of a panel of weights over all rows: at once, or in parts that each fit the second cache. Between parts the levels of each
// tile's tree above a part's leaves are stored (at k = 4864, 97 GFLOP/s became 118).
template <class X>
struct Course {
  i64 parts = 1, tiles, waiting = 1, floats;  // waiting: stored levels, the highest ones
  Course(i64 rows, i64 k) : tiles(::parts(rows, HIGH)) {
    for (; parts < LEAVES && woven<X>(k, PANEL) * 4 / parts > (640 << 10); parts *= 2) waiting++;
    floats = woven<X>(k, PANEL) + (parts > 1 ? tiles : 0) * waiting * HIGH * PANEL;
  }
};

// Compute one panel, the columns from j on, of all rows, packed at x. space: a buffer for the panel's weights and the stored levels.
template <class T, class Y>
static void panel(const Linear<T, Y>& a, const float* x, i64 j, const Course<Factor<T>>& course, float* space) {
  using X = Factor<T>;
  const i64 columns = a.n - j < PANEL ? a.n - j : PANEL, steps = padded(a.k) / PAIR * EACH<X>, high = woven<X>(a.k, HIGH);
  Tile tile;
  float *waiting = space + woven<X>(a.k, PANEL), *levels = (float*)tile.left[DEPTH + 1 - course.waiting];
  const i64 size = course.waiting * HIGH * PANEL;
  for (i64 c = 0; c < PANEL; c += 8) weave(a.w + (j + c) * a.k, columns - c, a.k, PANEL, space + c);
  for (i64 part = 1; part <= course.parts; part++)
    for (i64 t = 0; t < course.tiles; t++) {
      if (part > 1) std::memcpy(levels, waiting + t * size, size * sizeof(float));
      for (i64 l = LEAVES / course.parts * (part - 1); l < LEAVES / course.parts * part; l++) grow<X>(x + t * high, space, steps, l, tile);
      if (part < course.parts) std::memcpy(waiting + t * size, levels, size * sizeof(float));
      for (i64 r = 0; r < HIGH && t * HIGH + r < a.rows && part == course.parts; r++)
        for (i64 c = 0; c * LANES < columns; c++) {
          const i64 n = columns - c * LANES, at = j + c * LANES;
          const V sum = tile.left[DEPTH][r][c];
          store(a.y + (t * HIGH + r) * a.n + at, a.bias ? sum + load(a.bias + at, n) : sum, n);
        }
    }
}

// Compute columns [from, to) of all rows of x, which this thread packs first.
template <class T, class Y>
static void panels(const Linear<T, Y>& a, const T* x, i64 from, i64 to) {
  if constexpr (TILED<T>) return own_tiles(a, x, from, to);
  const Course<Factor<T>> course(a.rows, a.k);
  const i64 high = woven<Factor<T>>(a.k, HIGH);
  float *packed = scratch(course.tiles * high + course.floats), *space = packed + course.tiles * high;
  for (i64 t = 0; t < course.tiles; t++) weave(x + t * HIGH * a.k, a.rows - t * HIGH, a.k, HIGH, packed + t * high);
  for (i64 j = from; j < to; j += PANEL) panel(a, packed, j, course, space);
}

// ---- many: a Linear whose x is the output of pack
template <class T, class Y = T>
static i64 many_pieces(const Linear<T, Y>& a) {
  if constexpr (TILED<T>) return shared_pieces(a);
  return parts(a.n, PANEL);
}
template <class T, class Y = T>
static void many(const Linear<T, Y>& a, Work& work) {
  if constexpr (TILED<T>) return shared_tiles(a, a.x, work);
  const Course<Factor<T>> course(a.rows, a.k);
  float* space = scratch(course.floats);
  for (i64 p; (p = work.next()) >= 0;) panel(a, (const float*)a.x, p * PANEL, course, space);
}
