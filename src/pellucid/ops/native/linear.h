// y[r, n] = x[r, :] . w[n, :] + bias[n] for a few rows.
//
// The one idea: with few rows the weight's way from memory is the whole cost, so its rows are read one after another, each from memory
// once, and asked for early. A cell's sum has two accumulators and one order, set by k alone: a row has the same bits alone, among
// sixteen, and among the many of many.h.
#pragma once
#include "walk.h"

// Rows of w in a piece: 256 KiB where there are many, and a few pieces for each thread where there are not. row: bytes of one.
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
  i64 chunk() const { return rows_a_chunk(n, k * (i64)sizeof(T)); }
};

// A tile is BESIDE rows of w times up to TILE rows of x; its accumulators, two a cell, stay in registers. A single row of x takes one
// row of w at a time: on a Zen 3 core two cost a third of the bandwidth (18 GB/s became 12), and on a Cascade Lake they gain nothing.
// There 16 rows went from 145 to 178 GFLOP/s once a vector of x was loaded once for both.
constexpr int TILE = 6, BESIDE = LANES == 16 ? 2 : 1;
constexpr i64 NEAR = 64, NEAR_BYTES = 512 << 10;  // of w, at most: what stays in the second cache until all tiles have met it
constexpr i64 SPAN = 1024;                        // of k, at most: what a tile needs of x stays in the first cache

// Ask for what comes next. On Cascade Lake one row of bf16 went from 19.3 to 22.1 GB/s, four from 15.5 to 20, one of int4 from 18.3 to
// 21.2; bf16 on a Zen 3 core from 16.6 to 19.2, where float lost a tenth. Always inline, else GCC drops a call that only asks.
template <class T>
[[gnu::always_inline]] static inline void ahead(const T* w) {
  if constexpr (LANES == 16) {
    _mm_prefetch((const char*)w + 4096, _MM_HINT_T1);
    if constexpr (sizeof(T) == 4) _mm_prefetch((const char*)w + 4096 + 64, _MM_HINT_T1);
  } else if constexpr (sizeof(T) == 2) _mm_prefetch((const char*)w + 1024, _MM_HINT_T0);
}

// k numbers of J rows of w, `apart` from one to the next, times those of R rows of x, which stand arranged: cell (r, j) is r * J + j.
template <class T, int J, int R>
[[gnu::always_inline]] static inline void dot(const T* w, i64 apart, const float* x, i64 width, i64 k, V* even, V* odd) {
  const auto step = [&](const T* const* w, i64 i, const float* x) __attribute__((always_inline)) {
    V a[J], b[J];
#pragma GCC unroll 2
    for (int j = 0; j < J; j++) pair(w[j] + i, a[j], b[j]);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      V p = load(x + r * width), q = load(x + r * width + LANES);
      if (J > 1) asm("" : "+v"(p), "+v"(q));  // else GCC loads them again for every row of w
#pragma GCC unroll 2
      for (int j = 0; j < J; j++) even[r * J + j] = fma(a[j], p, even[r * J + j]), odd[r * J + j] = fma(b[j], q, odd[r * J + j]);
    }
  };
  const T* rows[J];
  for (int j = 0; j < J; j++) rows[j] = w + j * apart;
  i64 i = 0;
  for (; i + PAIR <= k; i += PAIR) {
    for (int j = 0; j < J; j++) ahead(rows[j] + i);
    step(rows, i, x + i);
  }
  if (i < k) {
    T last[J][PAIR] = {};
    for (int j = 0; j < J; j++) std::memcpy(last[j], rows[j] + i, (k - i) * sizeof(T)), rows[j] = last[j];
    step(rows, 0, x + i);
  }
}

// out[r][j], the sums of R rows of x with `count` rows of w, one span of k after another: sums on their way wait in `held`.
template <class T, int J, int R>
static void sums(const T* w, const float* x, i64 k, i64 span, i64 count, float (*out)[NEAR]) {
  constexpr int CELLS = J * R;
  V held[NEAR / J][2][CELLS];
  for (i64 i = 0; i < k; i += span) {
    const bool last = i + span >= k;
    for (i64 j = 0; j + J <= count; j += J) {
      V even[CELLS], odd[CELLS], *more = held[j / J][0], *much = held[j / J][1];
#pragma GCC unroll 12
      for (int c = 0; c < CELLS; c++) even[c] = i ? more[c] : set(0.f), odd[c] = i ? much[c] : set(0.f);
      dot<T, J, R>(w + j * k + i, k, x + i, padded(k), last ? k - i : span, even, odd);
      if (!last) {
#pragma GCC unroll 12
        for (int c = 0; c < CELLS; c++) more[c] = even[c], much[c] = odd[c];
        continue;
      }
#pragma GCC unroll 12
      for (int c = 0; c < CELLS; c++) even[c] = even[c] + odd[c];
      float cells[LANES];
      if constexpr (CELLS == 1) cells[0] = total(even[0]);
      else store(cells, totals<CELLS>(even));
      for (int r = 0; r < R; r++) std::memcpy(out[r] + j, cells + r * J, J * sizeof(float));
    }
  }
  if constexpr (J > 1)
    if (const i64 done = count / J * J; done < count) sums<T, 1, R>(w + done * k, x, k, span, count - done, (float(*)[NEAR])(out[0] + done));
}

template <class T, int R, class Y>
static void tile(const Linear<T, Y>& a, const float* x, i64 row, i64 span, i64 from, i64 to) {
  float out[R][NEAR];
  sums<T, R == 1 ? 1 : BESIDE, R>(a.w + from * a.k, x + row * padded(a.k), a.k, span, to - from, out);
  for (int r = 0; r < R; r++)
    steps(0, to - from, [&](i64 j, i64 n) {
      const V sum = load(out[r] + j, n);
      store(a.y + (row + r) * a.n + from + j, a.bias ? sum + load(a.bias + from + j, n) : sum, n);
    });
}

// The tile of so many rows, R at most.
template <class T, int R, class Y>
static void rows_of(const Linear<T, Y>& a, const float* x, i64 row, i64 rows, i64 span, i64 from, i64 to) {
  if (rows == R) tile<T, R>(a, x, row, span, from, to);
  else if constexpr (R > 1) rows_of<T, R - 1>(a, x, row, rows, span, from, to);
}

// Columns `from` to `to` of all rows, which stand arranged at x. Where one tile has all rows, each row of w is read at one go.
template <class T, class Y>
static void product(const Linear<T, Y>& a, const float* x, i64 from, i64 to) {
  const i64 tiles = (a.rows + TILE - 1) / TILE, spans = tiles > 1 ? (a.k + SPAN - 1) / SPAN : 1;  // sixteen rows are 5 + 5 + 6
  const i64 span = padded((a.k + spans - 1) / spans);
  const i64 many = NEAR_BYTES / (a.k * (i64)sizeof(T)) / 8 * 8, near = tiles == 1 || many > NEAR ? NEAR : many < 8 ? 8 : many;
  for (i64 j = from; j < to; j += near)
    for (i64 t = 0; t < tiles; t++) {
      const i64 row = t * a.rows / tiles, rows = (t + 1) * a.rows / tiles - row;
      rows_of<T, TILE>(a, x, row, rows, span, j, j + near < to ? j + near : to);
    }
}

template <class T, class Y = T>
static i64 linear_pieces(const i64* words) {
  auto& a = *(const Linear<T, Y>*)words;
  return (a.n + a.chunk() - 1) / a.chunk();
}
template <class T, class Y = T>
static void linear(const i64* words, Work& work) {
  auto& a = *(const Linear<T, Y>*)words;
  const i64 chunk = a.chunk(), width = padded(a.k);
  float* x = scratch(a.rows * width);
  for (i64 r = 0; r < a.rows; r++) arrange(a.x + r * a.k, x + r * width, a.k);
  for (i64 p; (p = work.next()) >= 0;) product(a, x, p * chunk, p * chunk + chunk < a.n ? p * chunk + chunk : a.n);
}
