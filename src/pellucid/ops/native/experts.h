// Experts for a few rows: scores, the choice of the best, sorting rows by expert, their products, and the sums by token.
//
// The one idea: the choice of experts is data, and no shape depends on it. Rows sorted by expert are contiguous, `ends` is the end of each
// expert's rows, and a piece of a product is a range of columns of every expert: each chosen expert's weight is read once.
#pragma once
#include "many.h"
#include "rows.h"

// ---- softmax: the softmax of each row of scores
struct Softmax {
  const float* x;
  float* y;
  i64 rows, width;
  FIELDS(x, y, rows, width)
};
static i64 softmax_pieces(const Softmax& a) { return a.rows; }
static void softmax(const Softmax& a, Work& work) {
  for (i64 r; (r = work.next()) >= 0;) {
    const float* x = a.x + r * a.width;
    float* y = a.y + r * a.width;
    V top = set(-INFINITY), sum = set(0.f);
    steps(0, a.width, [&](i64 i, i64 n) { top = n == LANES ? max(load(x + i), top) : top; });
    float high = largest(top);
    for (i64 i = a.width / LANES * LANES; i < a.width; i++) high = x[i] > high ? x[i] : high;
    steps(0, a.width, [&](i64 i, i64 n) { store(y + i, exponent(load(x + i, n) - set(high)), n); });
    steps(0, a.width, [&](i64 i, i64 n) { sum = sum + load(y + i, n); });
    const V below = set(total(sum));
    steps(0, a.width, [&](i64 i, i64 n) { store(y + i, load(y + i, n) / below, n); });
  }
}

// ---- correct: add one row of corrections to each row
struct Correct {
  const float *x, *by;
  float* y;
  i64 rows, width;
  FIELDS(x, by, y, rows, width)
};
static i64 correct_pieces(const Correct& a) { return a.rows; }
static void correct(const Correct& a, Work& work) {
  for (i64 r; (r = work.next()) >= 0;)
    steps(0, a.width, [&](i64 i, i64 n) { store(a.y + r * a.width + i, load(a.x + r * a.width + i, n) + load(a.by + i, n), n); });
}

// ---- best: the indices of the `chosen` largest scores of each row, in falling order; of ties the lower first. A NaN is largest.
//
// With several groups, only scores of the `groups_chosen` best groups are candidates; a group ranks by the sum of its `few` best.
struct Best {
  const float* x;
  i64* to;
  i64 rows, width, chosen, groups, groups_chosen, few;
  FIELDS(x, to, rows, width, chosen, groups, groups_chosen, few)
};
// Return the index of the largest of x [n] that is not taken yet, and mark it as taken.
static i64 take(const float* x, char* taken, i64 n) {
  i64 at = -1;
  for (i64 i = 0; i < n; i++)
    if (!taken[i] && (at < 0 || x[i] > x[at] || (x[i] != x[i] && x[at] == x[at]))) at = i;
  return taken[at] = 1, at;
}
static i64 best_pieces(const Best& a) { return a.rows; }
static void best(const Best& a, Work& work) {
  float* x = scratch(2 * a.width + 2 * a.groups);
  float* sums = x + a.width;
  char *taken = (char*)(sums + a.groups), *kept = taken + a.width;
  const i64 size = a.width / a.groups;
  for (i64 r; (r = work.next()) >= 0;) {
    std::memcpy(x, a.x + r * a.width, a.width * 4);
    if (a.groups > 1) {
      std::memset(taken, 0, a.width + a.groups);
      for (i64 g = 0; g < a.groups; g++) {
        sums[g] = 0;
        for (i64 i = 0; i < a.few; i++) sums[g] += x[g * size + take(x + g * size, taken + g * size, size)];
      }
      for (i64 i = 0; i < a.groups_chosen; i++) take(sums, kept, a.groups);
      for (i64 i = 0; i < a.width; i++) x[i] = kept[i / size] ? x[i] : -INFINITY;
    }
    std::memset(taken, 0, a.width);
    for (i64 i = 0; i < a.chosen; i++) a.to[r * a.chosen + i] = take(x, taken, a.width);
  }
}

// ---- mix: SparseMixer's shares (arXiv 2409.12136). A choice's is e^x over the sum of e^x of those near it, without better choices
struct Mix {
  const float* x;
  const i64* chosen;
  float* y;
  i64 rows, width, count;
  double near;
  FIELDS(x, chosen, y, rows, width, count, near)
};
static i64 mix_pieces(const Mix&) { return 1; }
static void mix(const Mix& a, Work& work) {
  if (work.next() < 0) return;
  for (i64 r = 0; r < a.rows; r++)
    for (i64 i = 0; i < a.count; i++) {
      const float *x = a.x + r * a.width, mine = x[a.chosen[r * a.count + i]];
      float sum = 0;
      for (i64 e = 0; e < a.width; e++) {
        bool left = !((mine - x[e]) / std::fmax(std::fabs(x[e]), mine) > (float)a.near);
        for (i64 j = 0; j < i; j++) left = left && a.chosen[r * a.count + j] != e;
        if (left) sum += std::exp(x[e] - mine);
      }
      a.y[r * a.count + i] = 1.f / sum;
    }
}

// ---- shares: the scores of the chosen, over their sum plus least if normalised, times scale
struct Shares {
  const float* x;
  const i64* chosen;
  float* y;
  i64 rows, width, count, normalised;
  double scale, least;
  FIELDS(x, chosen, y, rows, width, count, normalised, scale, least)
};
static i64 shares_pieces(const Shares&) { return 1; }
static void shares(const Shares& a, Work& work) {
  if (work.next() < 0) return;
  for (i64 r = 0; r < a.rows; r++) {
    float sum = 0;
    for (i64 i = 0; i < a.count; i++) sum += a.x[r * a.width + a.chosen[r * a.count + i]];
    const float below = a.normalised ? sum + (float)a.least : 1.f;
    for (i64 i = 0; i < a.count; i++) a.y[r * a.count + i] = a.x[r * a.width + a.chosen[r * a.count + i]] / below * (float)a.scale;
  }
}

// ---- sort: the stable order of choices [rows count] by expert, the token of each, and the end of each expert's
struct Sort {
  const i64* chosen;
  i64 *order, *token;
  int32_t* ends;
  i64 rows, count, experts;
  FIELDS(chosen, order, token, ends, rows, count, experts)
};
static i64 sort_pieces(const Sort&) { return 1; }
static void sort(const Sort& a, Work& work) {
  if (work.next() < 0) return;
  std::memset(a.ends, 0, a.experts * sizeof(int32_t));
  for (i64 i = 0; i < a.rows * a.count; i++) a.ends[a.chosen[i]]++;
  for (i64 e = 0, at = 0; e < a.experts; e++) at += a.ends[e], a.ends[e] = (int32_t)at - a.ends[e];
  for (i64 i = 0; i < a.rows * a.count; i++) {  // each end starts at its expert's first row, and advances with every row
    const i64 at = a.ends[a.chosen[i]]++;
    a.order[at] = i, a.token[at] = i / a.count;
  }
}

// ---- experts: multiply sorted rows [rows k] by their experts' weights [experts n k], and add their biases [experts n]
template <class T>
struct Experts {
  const T *w, *x;
  T* y;
  const T* bias;
  const int32_t* ends;
  i64 rows, experts, n, k;
  FIELDS(w, x, y, bias, ends, rows, experts, n, k)
  i64 chunk() const {  // columns of every expert in a piece: the size of a plain product's piece, divided by the experts that may run
    const i64 row = k * (i64)sizeof(T) * (rows < experts ? rows : experts), most = parts(n, 8), many = (256 << 10) / row / 8 * 8;
    if (rows > FEW) return 4 * PANEL;
    return many < 8 ? 8 : many > most ? (most + 7) / 8 * 8 : many;
  }
};
template <class T>
static i64 experts_pieces(const Experts<T>& a) {
  return parts(a.n, a.chunk());
}
template <class T>
static void experts(const Experts<T>& a, Work& work) {
  const i64 chunk = a.chunk();
  for (i64 p; (p = work.next()) >= 0;)
    for (i64 e = 0, row = 0; e < a.experts; row = a.ends[e++]) {
      const i64 rows = a.ends[e] - row, from = p * chunk, to = from + chunk < a.n ? from + chunk : a.n;
      if (!rows) continue;
      const Linear<T> one{a.w + e * a.n * a.k, a.x, a.y + row * a.n, a.bias ? a.bias + e * a.n : nullptr, rows, a.n, a.k};
      if (rows > FEW) {
        panels(one, a.x + row * a.k, from, to);
        continue;
      }
      product(one, arranged(a.x + row * a.k, rows, a.k), from, to, from);
    }
}

// ---- weigh: multiply sorted rows by their shares
template <class T>
struct Weigh {
  const T* x;
  const float* share;
  const i64* order;
  T* y;
  i64 rows, width;
  FIELDS(x, share, order, y, rows, width)
};
template <class T>
static i64 weigh_pieces(const Weigh<T>& a) {
  return parts(a.rows, rows_a_piece(a.rows, a.width));
}
template <class T>
static void weigh(const Weigh<T>& a, Work& work) {
  each_row(work, a.rows, a.width, [&](i64 r) {
    T share;
    put(&share, a.share[a.order[r]]);
    steps(r * a.width, (r + 1) * a.width, [&](i64 i, i64 n) { store(a.y + i, load(a.x + i, n) * set(get(&share)), n); });
  });
}

// ---- combine: sum each token's rows, times their shares unless null, in the order of their experts
template <class T>
struct Combine {
  const T* x;
  const float* share;
  const i64* order;
  T* y;
  i64 rows, count, width;
  FIELDS(x, share, order, y, rows, count, width)
};
template <class T>
static i64 combine_pieces(const Combine<T>& a) {
  return a.rows * parts(a.width, GRAIN);
}
template <class T>
static void combine(const Combine<T>& a, Work& work) {
  const i64 across = parts(a.width, GRAIN), n = a.rows * a.count;
  i64 *places = (i64*)scratch(2 * (n + a.rows)), *filled = places + n;  // places: each token's rows, in rising order.  filled: their number so far
  std::memset(filled, 0, a.rows * sizeof(i64));
  for (i64 j = 0; j < n; j++) {
    const i64 t = a.order[j] / a.count;
    places[t * a.count + filled[t]++] = j;
  }
  for (i64 p; (p = work.next()) >= 0;) {
    const i64 t = p / across, from = p % across * GRAIN, to = from + GRAIN < a.width ? from + GRAIN : a.width;
    steps(from, to, [&](i64 i, i64 n) {
      V sum = set(0.f);
      for (i64 c = 0; c < a.count; c++) {
        const i64 j = places[t * a.count + c];
        sum = fma(load(a.x + j * a.width + i, n), set(a.share ? a.share[a.order[j]] : 1.f), sum);
      }
      store(a.y + t * a.width + i, sum, n);
    });
  }
}
