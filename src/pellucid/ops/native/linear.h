// y[r, n] = x[r, :] . w[n, :] + bias[n] for a few rows.
//
// The one idea: with few rows the weight's way from memory is the whole cost, so its rows are read one or two at a time, in order,
// each once for up to TILE rows of x (four streams at a time cost a third of the bandwidth). A sum has two accumulators and one order,
// set by k alone: a row has the same bits alone and among sixteen.
#pragma once
#include "walk.h"

template <class T>
struct Linear {
  const T *w, *x;
  T* y;
  const T* bias;
  i64 rows, n, k;
  i64 chunk() const {  // rows of w in a piece: 256 KiB where there are many, and a few pieces for each thread where there are not
    i64 row = k * (i64)sizeof(T), bytes = n * row / 32;
    bytes = bytes < (16 << 10) ? 16 << 10 : bytes > (256 << 10) ? 256 << 10 : bytes;
    i64 many = bytes / row / 8 * 8;
    return many < 8 ? 8 : many;
  }
};

constexpr int TILE = LANES == 16 ? 12 : 6;  // two accumulators a row, and they must stay in registers

// out[n][r] = x[r, :] . w[n, :] for R rows of x and N of w.
template <class T, int R, int N>
static inline void dot(const T* w, const float* x, i64 k, float (*out)[R]) {
  V even[N][R], odd[N][R], a, b;
  for (int n = 0; n < N; n++)
    for (int r = 0; r < R; r++) even[n][r] = odd[n][r] = set(0.f);
  const i64 width = padded(k);
  auto join = [&](int n, const float* at) {
    for (int r = 0; r < R; r++) {
      even[n][r] = fma(a, load(at + r * width), even[n][r]);
      odd[n][r] = fma(b, load(at + r * width + LANES), odd[n][r]);
    }
  };
  i64 i = 0;
  for (; i + PAIR <= k; i += PAIR)
    for (int n = 0; n < N; n++) pair(w + n * k + i, a, b), join(n, x + i);
  if (i < k)
    for (int n = 0; n < N; n++) pair(w + n * k + i, a, b, k - i), join(n, x + i);
  for (int n = 0; n < N; n++)
    for (int r = 0; r < R; r++) out[n][r] = total(even[n][r] + odd[n][r]);
}

template <class T, int R, int N>
static inline void cell(const Linear<T>& a, const float* x, i64 row, i64 j) {
  float out[N][R];
  dot<T, R, N>(a.w + j * a.k, x + row * padded(a.k), a.k, out);
  for (int n = 0; n < N; n++)
    for (int r = 0; r < R; r++) put(a.y + (row + r) * a.n + j + n, a.bias ? out[n][r] + get(a.bias + j + n) : out[n][r]);
}

template <class T, int R>
static void tile(const Linear<T>& a, const float* x, i64 row, i64 from, i64 to) {
  constexpr int N = R < 3 ? 2 : 1;  // one or two rows of x alone leave the adders waiting for each other
  i64 j = from;
  for (; j + N <= to; j += N) cell<T, R, N>(a, x, row, j);
  for (; j < to; j++) cell<T, R, 1>(a, x, row, j);
}

template <class T, int R>
static void rest(const Linear<T>& a, const float* x, i64 row, i64 from, i64 to) {
  if (a.rows - row == R) tile<T, R>(a, x, row, from, to);
  else if constexpr (R > 1) rest<T, R - 1>(a, x, row, from, to);
}

template <class T>
static i64 linear_pieces(const i64* words) {
  auto& a = *(const Linear<T>*)words;
  return (a.n + a.chunk() - 1) / a.chunk();
}
template <class T>
static void linear(const i64* words, Work& work) {
  auto& a = *(const Linear<T>*)words;
  const i64 chunk = a.chunk(), width = padded(a.k);
  float* x = scratch(a.rows * width);
  for (i64 r = 0; r < a.rows; r++) arrange(a.x + r * a.k, x + r * width, a.k);
  for (i64 p; (p = work.next()) >= 0;) {
    const i64 from = p * chunk, to = from + chunk < a.n ? from + chunk : a.n;
    const i64 some = a.rows > TILE ? 8 : to - from;  // with several tiles a few weight rows stay near until all tiles have met them
    for (i64 j = from; j < to; j += some) {
      const i64 end = j + some < to ? j + some : to;
      i64 row = 0;
      for (; row + TILE <= a.rows; row += TILE) tile<T, TILE>(a, x, row, j, end);
      if (row < a.rows) rest<T, TILE - 1>(a, x, row, j, end);
    }
  }
}
