// y[r, n] = x[r, :] . w[n, :] + bias[n] for a few rows.
//
// The one idea: with few rows the weight's way from memory is the whole cost, so its rows are read strictly one after another, each
// once for up to TILE rows of x (two rows at a time cost a third of the bandwidth: 18 GB/s became 12 on a Zen 3 core). A sum has two
// accumulators and one order, set by k alone: a row has the same bits alone, among sixteen, and among the many of many.h.
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

constexpr int TILE = LANES == 16 ? 12 : 6;  // two accumulators a row, and they must stay in registers

// Ask for what comes next. bf16 leaves the core little time for it: 16.6 GB/s became 19.2 on a Zen 3 core, where float lost a tenth.
static inline void ahead(const u16* w) {
  if (LANES == 8) _mm_prefetch((const char*)w + 1024, _MM_HINT_T0);
}
static inline void ahead(const float*) {}

template <class T, int R>
static inline void dot(const T* w, const float* x, i64 k, float* out) {
  V even[R], odd[R], a, b;
  for (int r = 0; r < R; r++) even[r] = odd[r] = set(0.f);
  const i64 width = padded(k);
  i64 i = 0;
  for (; i + PAIR <= k; i += PAIR) {
    ahead(w + i);
    pair(w + i, a, b);
    for (int r = 0; r < R; r++) {
      even[r] = fma(a, load(x + r * width + i), even[r]);
      odd[r] = fma(b, load(x + r * width + i + LANES), odd[r]);
    }
  }
  if (i < k) {
    pair(w + i, a, b, k - i);
    for (int r = 0; r < R; r++) {
      even[r] = fma(a, load(x + r * width + i), even[r]);
      odd[r] = fma(b, load(x + r * width + i + LANES), odd[r]);
    }
  }
  for (int r = 0; r < R; r++) out[r] = total(even[r] + odd[r]);
}

template <class T, int R, class Y>
static void tile(const Linear<T, Y>& a, const float* x, i64 row, i64 from, i64 to) {
  float out[R];
  for (i64 j = from; j < to; j++) {
    dot<T, R>(a.w + j * a.k, x + row * padded(a.k), a.k, out);
    for (int r = 0; r < R; r++) put(a.y + (row + r) * a.n + j, a.bias ? out[r] + get(a.bias + j) : out[r]);
  }
}

template <class T, int R, class Y>
static void rest(const Linear<T, Y>& a, const float* x, i64 row, i64 from, i64 to) {
  if (a.rows - row == R) tile<T, R>(a, x, row, from, to);
  else if constexpr (R > 1) rest<T, R - 1>(a, x, row, from, to);
}

// Columns `from` to `to` of all rows, which stand arranged at x.
template <class T, class Y>
static void product(const Linear<T, Y>& a, const float* x, i64 from, i64 to) {
  const i64 some = a.rows > TILE ? 8 : to - from;  // with several tiles a few weight rows stay near until all tiles have met them
  for (i64 j = from; j < to; j += some) {
    const i64 end = j + some < to ? j + some : to;
    i64 row = 0;
    for (; row + TILE <= a.rows; row += TILE) tile<T, TILE>(a, x, row, j, end);
    if (row < a.rows) rest<T, TILE - 1>(a, x, row, j, end);
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
