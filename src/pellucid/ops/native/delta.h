// The gated delta rule (arXiv 2412.06464), one token after another: decay, and the decays themselves.
//
// The one idea: a head's state S [key value] lies in its text's page, and a token reads it twice and writes it once. Tokens are never reordered: a row has the same bits in a prompt and alone.
#pragma once
#include "rows.h"

// ---- decay: exp(-exp(log_rate) * softplus(a + bias)), by head
template <class T>
struct Decay {
  const T *a, *log_rate, *bias;
  float* y;
  i64 rows, heads;
  FIELDS(a, log_rate, bias, y, rows, heads)
};
template <class T>
static i64 decay_pieces(const Decay<T>& a) {
  return parts(a.rows, rows_a_piece(a.heads));
}
template <class T>
static void decay(const Decay<T>& a, Work& work) {
  each_row(work, a.rows, a.heads, [&](i64 r) {
    for (i64 h = 0; h < a.heads; h++) {
      const float x = get(a.a + r * a.heads + h) + get(a.bias + h);
      const float soft = x > 20.f ? x : std::log1p(std::exp(x));  // torch's bound
      a.y[r * a.heads + h] = std::exp(-std::exp(get(a.log_rate + h)) * soft);
    }
  });
}

// ---- delta_rule: S <- decay S + k (beta (v - decay S^T k))^T, y = S^T q, for `run` tokens of each text. A page has two places for a state,
// after tokens at even and at odd positions, so that a step of one token may run again.
template <class T>
struct DeltaRule {
  const T *q, *k, *v;  // [rows groups key], [rows heads value]
  const float* decay;  // [rows heads]
  const T* beta;
  float* pool;  // [pages 2 heads key value]
  const i64 *table, *positions;
  T* y;
  i64 rows, run, heads, groups, key, value, size, pages;  // pages: from one text's table to the next one's, 0 if all share one
  double scale;  // of keys; of queries twice
  FIELDS(q, k, v, decay, beta, pool, table, positions, y, rows, run, heads, groups, key, value, size, pages, scale)
};
template <class T>
static i64 delta_rule_pieces(const DeltaRule<T>& a) {
  return a.rows / a.run * a.heads;
}
template <class T>
static void delta_rule(const DeltaRule<T>& a, Work& work) {
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
      const float keep = a.decay[r * a.heads + h], beta = get(a.beta + r * a.heads + h), scale = (float)a.scale;
      T* out = a.y + (r * a.heads + h) * a.value;
      // Some columns of S at a time: all their keys fit the first cache, where they are read twice and written once.
      const auto columns = [&](i64 j, auto count, auto lanes) {
        constexpr int N = decltype(count)::value;
        V error[N], seen[N];
        for (int c = 0; c < N; c++) error[c] = seen[c] = set(0.f);
        for (i64 i = 0; i < a.key; i++) {
          const V x = set(get(k + i) * scale * keep);
          for (int c = 0; c < N; c++) error[c] = fma(x, load(from + i * a.value + j + c * LANES, (i64)lanes), error[c]);
        }
        for (int c = 0; c < N; c++) error[c] = set(beta) * (load(v + j + c * LANES, (i64)lanes) - error[c]);
        for (i64 i = 0; i < a.key; i++) {
          const V x = set(get(k + i) * scale), y = set(get(q + i) * scale * scale);
          for (int c = 0; c < N; c++) {
            const i64 at = i * a.value + j + c * LANES;
            const V now = fma(x, error[c], set(keep) * load(from + at, (i64)lanes));
            store(s + at, now, (i64)lanes);
            seen[c] = fma(y, now, seen[c]);
          }
        }
        for (int c = 0; c < N; c++) store(out + j + c * LANES, seen[c], (i64)lanes);
      };
      i64 j = 0;
      for (; j + 4 * LANES <= a.value; j += 4 * LANES) columns(j, std::integral_constant<int, 4>(), std::integral_constant<i64, LANES>());
      steps(j, a.value, [&](i64 at, i64 n) { columns(at, std::integral_constant<int, 1>(), n); });
    }
  }
}
