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
// There 16 rows went from 102 to 148 GFLOP/s as 2 x 6 instead of 1 x 12: a vector of x serves two rows of w.
constexpr int TILE = 6, BESIDE = LANES == 16 ? 2 : 1;
constexpr i64 NEAR = 64;  // rows of w that stay in the second cache until all tiles have met them

// Ask for what comes next. On Cascade Lake one row of bf16 went from 19.3 to 22.1 GB/s, four from 15.5 to 20, one of int4 from 18.3 to
// 21.2; bf16 on a Zen 3 core from 16.6 to 19.2, where float lost a tenth. Always inline, else GCC drops a call that only asks.
template <class T>
[[gnu::always_inline]] static inline void ahead(const T* w) {
  if constexpr (LANES == 16) {
    _mm_prefetch((const char*)w + 4096, _MM_HINT_T1);
    if constexpr (sizeof(T) == 4) _mm_prefetch((const char*)w + 4096 + 64, _MM_HINT_T1);
  } else if constexpr (sizeof(T) == 2) _mm_prefetch((const char*)w + 1024, _MM_HINT_T0);
}

// J rows of w, k numbers each, times R rows of x, which stand arranged.
template <class T, int J, int R>
static inline void dot(const T* w, const float* x, i64 k, float (*out)[R]) {
  V even[J][R], odd[J][R];
  for (int j = 0; j < J; j++)
    for (int r = 0; r < R; r++) even[j][r] = odd[j][r] = set(0.f);
  const i64 width = padded(k);
  const auto step = [&](i64 i, i64 n) __attribute__((always_inline)) {
    V a[J], b[J];
    for (int j = 0; j < J; j++) ahead(w + j * k + i), pair(w + j * k + i, a[j], b[j], n);
    for (int r = 0; r < R; r++) {
      const V p = load(x + r * width + i), q = load(x + r * width + i + LANES);
      for (int j = 0; j < J; j++) even[j][r] = fma(a[j], p, even[j][r]), odd[j][r] = fma(b[j], q, odd[j][r]);
    }
  };
  i64 i = 0;
  for (; i + PAIR <= k; i += PAIR) step(i, PAIR);
  if (i < k) step(i, k - i);
  for (int j = 0; j < J; j++)
    for (int r = 0; r < R; r++) out[j][r] = total(even[j][r] + odd[j][r]);
}

template <class T, int J, int R, class Y>
static void tile(const Linear<T, Y>& a, const float* x, i64 row, i64 from, i64 to) {
  float out[J][R];
  for (; from + J <= to; from += J) {
    dot<T, J, R>(a.w + from * a.k, x + row * padded(a.k), a.k, out);
    for (i64 j = 0; j < J; j++)
      for (i64 r = 0; r < R; r++) put(a.y + (row + r) * a.n + from + j, a.bias ? out[j][r] + get(a.bias + from + j) : out[j][r]);
  }
  if constexpr (J > 1) tile<T, 1, R>(a, x, row, from, to);
}

// The tile of so many rows, R at most.
template <class T, int R, class Y>
static void rows_of(const Linear<T, Y>& a, const float* x, i64 row, i64 rows, i64 from, i64 to) {
  if (rows == R) tile<T, R == 1 ? 1 : BESIDE, R>(a, x, row, from, to);
  else if constexpr (R > 1) rows_of<T, R - 1>(a, x, row, rows, from, to);
}

// Columns `from` to `to` of all rows, which stand arranged at x.
template <class T, class Y>
static void product(const Linear<T, Y>& a, const float* x, i64 from, i64 to) {
  const i64 tiles = (a.rows + TILE - 1) / TILE;  // sixteen rows are 5 + 5 + 6
  for (i64 j = from; j < to; j += NEAR)
    for (i64 t = 0; t < tiles; t++) {
      const i64 row = t * a.rows / tiles, rows = (t + 1) * a.rows / tiles - row;
      rows_of<T, TILE>(a, x, row, rows, j, j + NEAR < to ? j + NEAR : to);
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
