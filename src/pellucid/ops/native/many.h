// The product of linear.h for many rows: prompts, and large batches.
//
// The one idea: `dot` has a partial sum of one cell in each lane, and adds them as a tree at the end. Here the lanes are cells: the same
// partial sums, the leaves, are computed one after another for a tile of cells, and added in the same tree. Each loaded number serves a
// tile, and a cell has the bits that `dot` gives it.
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

// Return the floats from one leaf to the next, `stride` for each of its numbers. The 16 more keep leaves out of one cache set.
static inline i64 leaf_size(i64 k, i64 stride) { return padded(k) / LEAVES * stride + 16; }
static inline i64 woven(i64 k, i64 stride) { return LEAVES * leaf_size(k, stride); }

// Transpose eight vectors of eight: to[at[j] + i] = v[i][j].
static inline void transpose(const __m256* v, float* to, const i64* at) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]), a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
    }
  for (int j = 0; j < 4; j++) {
    _mm256_storeu_ps(to + at[j], _mm256_permute2f128_ps(b[j], b[j + 4], 0x20));
    _mm256_storeu_ps(to + at[j + 4], _mm256_permute2f128_ps(b[j], b[j + 4], 0x31));
  }
}
static inline void halves(V v, __m256* out) {
#if defined(__AVX512F__)
  out[0] = _mm512_castps512_ps256(v), out[8] = _mm512_extractf32x8_ps(v, 1);
#else
  out[0] = v;
#endif
}

// Write eight rows of k numbers as floats, leaf by leaf: a number of each row, then `stride` on. Rows from `rows` on are zeros.
template <class T>
static void weave(const T* x, i64 rows, i64 k, i64 stride, float* to) {
  const i64 size = leaf_size(k, stride);
  i64 even[LANES], odd[LANES];
  for (i64 l = 0; l < LANES; l++) even[l] = leaf(l, 0) * size, odd[l] = SUMS == 1 ? even[l] + stride : leaf(l, 1) * size;
  for (i64 i = 0; i < k; i += PAIR, to += PAIR / LEAVES * stride) {
    __m256 a[16], b[16];
    for (i64 r = 0; r < 8; r++) {
      V p = set(0.f), q = p;
      if (r < rows) pair(x + r * k + i, p, q, k - i);
      halves(p, a + r), halves(q, b + r);
    }
    for (i64 h = 0; h < LANES; h += 8) transpose(a + h, to, even + h), transpose(b + h, to, odd + h);
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
static i64 pack_pieces(const Pack<T>& a) {
  return parts(a.rows, HIGH);
}
template <class T>
static void pack(const Pack<T>& a, Work& work) {
  for (i64 p; (p = work.next()) >= 0;) weave(a.x + p * HIGH * a.k, a.rows - p * HIGH, a.k, HIGH, a.to + p * woven(a.k, HIGH));
}

// A tile's tree: at each level the left sums that wait for the right ones, at the top the results.
struct Tile {
  V left[DEPTH + 1][HIGH][WIDE];
};

// Compute leaf l of a tile from woven x and w, and add it to the tree.
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
      for (int c = 0; c < WIDE; c++) acc[r][c] = fma(a[c], b, acc[r][c]);
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
struct Course {
  i64 parts = 1, tiles, waiting = 1, floats;  // waiting: stored levels, the highest ones
  Course(i64 rows, i64 k) : tiles(::parts(rows, HIGH)) {
    for (; parts < LEAVES && woven(k, PANEL) * 4 / parts > (640 << 10); parts *= 2) waiting++;
    floats = woven(k, PANEL) + (parts > 1 ? tiles : 0) * waiting * HIGH * PANEL;
  }
};

// Compute one panel, the columns from j on, of all rows, packed at x. space: a buffer for the panel's weights and the stored levels.
template <class T, class Y>
static void panel(const Linear<T, Y>& a, const float* x, i64 j, const Course& course, float* space) {
  const i64 columns = a.n - j < PANEL ? a.n - j : PANEL, steps = padded(a.k) / LEAVES;
  Tile tile;
  float *waiting = space + woven(a.k, PANEL), *levels = (float*)tile.left[DEPTH + 1 - course.waiting];
  const i64 size = course.waiting * HIGH * PANEL;
  for (i64 c = 0; c < PANEL; c += 8) weave(a.w + (j + c) * a.k, columns - c, a.k, PANEL, space + c);
  for (i64 part = 1; part <= course.parts; part++)
    for (i64 t = 0; t < course.tiles; t++) {
      if (part > 1) std::memcpy(levels, waiting + t * size, size * sizeof(float));
      for (i64 l = LEAVES / course.parts * (part - 1); l < LEAVES / course.parts * part; l++) grow(x + t * woven(a.k, HIGH), space, steps, l, tile);
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
  const Course course(a.rows, a.k);
  float *packed = scratch(course.tiles * woven(a.k, HIGH) + course.floats), *space = packed + course.tiles * woven(a.k, HIGH);
  for (i64 t = 0; t < course.tiles; t++) weave(x + t * HIGH * a.k, a.rows - t * HIGH, a.k, HIGH, packed + t * woven(a.k, HIGH));
  for (i64 j = from; j < to; j += PANEL) panel(a, packed, j, course, space);
}

// ---- many: a Linear whose x is the output of pack
template <class T, class Y = T>
static i64 many_pieces(const Linear<T, Y>& a) {
  return parts(a.n, PANEL);
}
template <class T, class Y = T>
static void many(const Linear<T, Y>& a, Work& work) {
  const Course course(a.rows, a.k);
  float* space = scratch(course.floats);
  for (i64 p; (p = work.next()) >= 0;) panel(a, (const float*)a.x, p * PANEL, course, space);
}
