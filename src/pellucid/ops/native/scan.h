// States that every token rewrites: the gated delta rule (arXiv 2412.06464) and Mamba-2's scan (arXiv 2405.21060), one token after another.
//
// The one idea: a head's state S [key value] lies in its text's page, and a token reads it once or twice and writes it once. Tokens are never reordered: a row has the same bits in a prompt and alone.
#pragma once
#include "rows.h"

// ---- softplus: ln(1 + e^(x + bias)) by head, between two limits
template <class T>
struct Softplus {
  const T *x, *bias;
  float* y;
  i64 rows, heads;
  double least, most;
  FIELDS(x, bias, y, rows, heads, least, most)
};
template <class T>
static i64 softplus_pieces(const Softplus<T>& a) {
  return parts(a.rows, rows_a_piece(a.rows, a.heads));
}
template <class T>
static void softplus(const Softplus<T>& a, Work& work) {
  const float least = (float)a.least, most = (float)a.most;
  each_row(work, a.rows, a.heads, [&](i64 r) {
    for (i64 h = 0; h < a.heads; h++) {
      const float x = get(a.x + r * a.heads + h) + get(a.bias + h);
      const float soft = x > 20.f ? x : std::log1p(std::exp(x));  // torch's bound
      a.y[r * a.heads + h] = soft < least ? least : soft > most ? most : soft;
    }
  });
}

// ---- decay: exp(-exp(log_rate) * dt), by head
template <class T>
struct Decay {
  const float* dt;
  const T* log_rate;
  float* y;
  i64 rows, heads;
  FIELDS(dt, log_rate, y, rows, heads)
};
template <class T>
static i64 decay_pieces(const Decay<T>& a) {
  return parts(a.rows, rows_a_piece(a.rows, a.heads));
}
template <class T>
static void decay(const Decay<T>& a, Work& work) {
  each_row(work, a.rows, a.heads, [&](i64 r) {
    for (i64 h = 0; h < a.heads; h++) a.y[r * a.heads + h] = std::exp(-std::exp(get(a.log_rate + h)) * a.dt[r * a.heads + h]);
  });
}

// ---- scan: S <- decay S + k row^T, y = S^T q + skip v, for `run` tokens of each text. The row is beta (v - decay S^T k), or without a beta
// dt v. A page has two places for a state, after tokens at even and at odd positions, so that a step of one token may run again.
template <class T>
struct Scan {
  const T *q, *k, *v;  // [rows groups key], [rows heads value]
  const float* decay;  // [rows heads]
  const T* beta;    // or null:
  const float* dt;
  const T* skip;  // [heads], or null
  float* pool;  // [pages 2 heads key value]
  const i64 *table, *positions;
  T* y;
  i64 rows, run, heads, groups, key, value, size, pages;  // pages: from one text's table to the next one's, 0 if all share one
  double scale;  // of keys; of queries twice
  FIELDS(q, k, v, decay, beta, dt, skip, pool, table, positions, y, rows, run, heads, groups, key, value, size, pages, scale)
};
template <class T>
static i64 scan_pieces(const Scan<T>& a) {
  return a.rows / a.run * a.heads;
}
template <class T>
static void scan(const Scan<T>& a, Work& work) {
  const i64 state = a.key * a.value;
  for (i64 p; (p = work.next()) >= 0;) {
    const i64 text = p / a.heads, h = p % a.heads, g = h / (a.heads / a.groups), last = a.positions[(text + 1) * a.run - 1];
    const i64* table = a.table + text * a.run * a.pages;
    const auto place = [&](i64 position) { return a.pool + ((table[position / a.size] * 2 + position % 2) * a.heads + h) * state; };
    float* s = nullptr;
    for (i64 r = text * a.run; r < (text + 1) * a.run; r++) {
      const i64 position = a.positions[r], end = (position / a.size + 1) * a.size - 1;
      const float* from = s ? s : position ? place(position - 1) : nullptr;
      if (!s || position % a.size == 0) s = place(end < last ? end : last);  // the state at the end of the page, or of the run
      if (!from) std::memset(s, 0, state * sizeof(float)), from = s;
      const T *q = a.q + (r * a.groups + g) * a.key, *k = a.k + (r * a.groups + g) * a.key, *v = a.v + (r * a.heads + h) * a.value;
      const float keep = a.decay[r * a.heads + h], scale = (float)a.scale;
      const float rate = a.beta ? get(a.beta + r * a.heads + h) : a.dt[r * a.heads + h];
      T* out = a.y + (r * a.heads + h) * a.value;
      // Some columns of S at a time: all their keys fit the first cache, where they are read twice and written once.
      const auto columns = [&](i64 j, auto count, auto lanes) {
        constexpr int N = decltype(count)::value;
        V error[N], seen[N];
        for (int c = 0; c < N; c++) error[c] = seen[c] = set(0.f);
        for (i64 i = 0; a.beta && i < a.key; i++) {
          const V x = set(get(k + i) * scale * keep);
          for (int c = 0; c < N; c++) error[c] = fma(x, load(from + i * a.value + j + c * LANES, (i64)lanes), error[c]);
        }
        for (int c = 0; c < N; c++) error[c] = set(rate) * (load(v + j + c * LANES, (i64)lanes) - error[c]);
        for (i64 i = 0; i < a.key; i++) {
          const V x = set(get(k + i) * scale), y = set(get(q + i) * scale * scale);
          for (int c = 0; c < N; c++) {
            const i64 at = i * a.value + j + c * LANES;
            const V now = fma(x, error[c], set(keep) * load(from + at, (i64)lanes));
            store(s + at, now, (i64)lanes);
            seen[c] = fma(y, now, seen[c]);
          }
        }
        for (int c = 0; c < N; c++) {
          if (a.skip) seen[c] = fma(set(get(a.skip + h)), load(v + j + c * LANES, (i64)lanes), seen[c]);
          store(out + j + c * LANES, seen[c], (i64)lanes);
        }
      };
      i64 j = 0;
      for (; j + 4 * LANES <= a.value; j += 4 * LANES) columns(j, std::integral_constant<int, 4>(), std::integral_constant<i64, LANES>());
      steps(j, a.value, [&](i64 at, i64 n) { columns(at, std::integral_constant<int, 1>(), n); });
    }
  }
}
