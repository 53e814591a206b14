// Keys and values in pages, and attention from a few rows to them in place.
//
// Position p of a request is the pool's row table[p / size] * size + p % size. Row r of a call has its table at table + r * pages; pages
// is 0 if all rows share one request's table. The row at position p sees one range of positions, up to p or, if that is larger, up to
// until - 1, and reads no others. Everything that grows with the text is behind pointers, so that a recorded call serves later steps.
#pragma once
#include "int8_rows.h"

// ---- store: write the rows of x to a pool [rows of all pages, width], each at its position's row
template <class T>
struct Store {
  const T* x;
  T* pool;
  const i64 *table, *positions;
  i64 rows, width, size, pages;
  FIELDS(x, pool, table, positions, rows, width, size, pages)
};
template <class T>
static i64 store_rows_pieces(const Store<T>&) {
  return 1;
}
template <class T>
static void store_rows(const Store<T>& a, Work& work) {
  if (work.next() < 0) return;
  for (i64 r = 0; r < a.rows; r++) {
    const i64 p = a.positions[r], *table = a.table + r * a.pages;
    if (p >= 0) std::memcpy(a.pool + (table[p / a.size] * a.size + p % a.size) * a.width, a.x + r * a.width, a.width * sizeof(T));
  }
}

// ---- attend: softmax(q k^T scale + the mask's biases) v, up to TOGETHER heads of one row at a time
//
// window, chunk: 0 for none.  cap: the soft cap of scores, or 0.  sinks [heads]: the score of one more key without a value.
// slopes [heads]: a bias of -slope * distance * steep; if rounded, of slope * key's position, in bf16.
// learned [buckets heads]: a bias by distance, in row buckets[distance], the distance clamped to -reach ... reach.
// S: the type of stored numbers; if it is not T, k_scales and v_scales [rows of all pages, groups] multiply them.
// scores, pattern [heads rows columns]: what a watch keeps, of the keys from position `start` on, hidden ones too; columns: 0 for none.
// runs: the number of texts, and where each one's rows begin and the last one's end; null if all rows are of one text, or each of its own.
template <class T, class S = T>
struct Attend {
  const T* q;
  const S *k, *v;
  const T *k_scales, *v_scales;
  const i64 *table, *positions, *runs;
  T* z;
  const T* sinks;
  const double* slopes;
  const T* learned;
  const i64* buckets;
  T *scores, *pattern;
  i64 rows, heads, groups, key, value, size, pages, window, chunk, until, rounded, reach, start, columns;
  double scale, cap, steep;
  FIELDS(q, k, v, k_scales, v_scales, table, positions, runs, z, sinks, slopes, learned, buckets, scores, pattern, rows, heads, groups, key, value, size, pages, window, chunk, until, rounded, reach, start, columns, scale, cap, steep)
  i64 first(i64 p) const {  // the first position visible from p
    i64 from = window && p >= window ? p - window + 1 : 0;
    return chunk && p / chunk * chunk > from ? p / chunk * chunk : from;
  }
  i64 seen(i64 p) const { return (until > p + 1 ? until : p + 1) - first(p); }  // the number of visible positions
  Attend text(i64 i) const {  // the rows of text i of `runs`
    const i64 r = runs[1 + i];
    Attend own = *this;
    own.q += r * heads * key, own.z += r * heads * value, own.positions += r, own.table += r * pages;
    own.rows = runs[2 + i] - r, own.pages = 0, own.runs = nullptr;
    return own;
  }
};

// TOGETHER: heads of a group that use a loaded key at once.  SOON: the key this far ahead is prefetched, since no processor predicts the
// address of the next page. With 16 texts of 200 tokens at Qwen2.5-0.5B's shape a step went from 8 to 5 ms; either alone gained nothing.
constexpr int TOGETHER = LANES == 16 ? 4 : 2;
constexpr i64 SOON = 16;
template <class T>
static inline void prefetch_key(const T* p, i64 n) {
  for (i64 i = 0; i < n; i += 64 / (i64)sizeof(T)) prefetch_l1(p + i);
}

// Set scores[h * pitch + t] to scale * q[h] . key t for H heads and t in [0, seen). at: each key's offset in k. pitch: a multiple of 8.
template <class T, int H = 1>
static void score(const T* k, const float* q, const i64* at, i64 seen, i64 width, float scale, float* scores, i64 pitch = 0) {
  constexpr int KEYS = 8 / H;
  for (i64 t = 0; t < seen; t += KEYS) {
    V sum[8], a, b;
    const T* key[KEYS];
    for (int j = 0; j < 8; j++) sum[j] = set(0.f);
    for (int j = 0; j < KEYS; j++) {
      key[j] = k + at[t + j < seen ? t + j : seen - 1];
      prefetch_key(k + at[t + j + SOON < seen ? t + j + SOON : seen - 1], width);
    }
    const auto meet = [&](i64 i, i64 n) __attribute__((always_inline)) {
      for (int j = 0; j < KEYS; j++) {
        pair(key[j] + i, a, b, n);
        for (int h = 0; h < H; h++) {
          const float* x = q + h * padded(width) + i;
          sum[j * H + h] = fma(b, load(x + LANES), fma(a, load(x), sum[j * H + h]));
        }
      }
    };
    i64 i = 0;
    for (; i + PAIR <= width; i += PAIR) meet(i, PAIR);
    if (i < width) meet(i, width - i);
    const Eight scaled = eight(sum) * set8(scale);
    if constexpr (H == 1) store8(scores + t, scaled);
    else {
      float cells[8];
      store8(cells, scaled);
      for (int j = 0; j < KEYS; j++)
        for (int h = 0; h < H; h++) scores[h * pitch + t + j] = cells[j * H + h];
    }
  }
}

// Replace scores by e^(score - top), and return their sum with the sink's. The buffer extends to a multiple of LANES.
static float soften(float* scores, i64 seen, float sink = -INFINITY) {
  const i64 end = (seen + LANES - 1) / LANES * LANES;
  for (i64 t = seen; t < end; t++) scores[t] = -INFINITY;
  V top = load(scores), sum = set(0.f);
  for (i64 t = LANES; t < end; t += LANES) top = max(top, load(scores + t));
  const V high = max(set(largest(top)), set(sink));
  for (i64 t = 0; t < end; t += LANES) store(scores + t, exponent(load(scores + t) - high));
  for (i64 t = seen; t < end; t++) scores[t] = 0.f;
  for (i64 t = 0; t < end; t += LANES) sum = sum + load(scores + t);
  return sink == -INFINITY ? total(sum) : total(sum) + total(exponent(set(sink) - high)) / LANES;
}

// Apply the soft cap and head h's biases to the scores of the row at position p with keys from, from + 1 ...
template <class T, class S>
static void add_bias(const Attend<T, S>& a, i64 h, i64 p, i64 from, i64 seen, float* scores) {
  const V cap = set((float)a.cap);
  if (a.cap) steps(0, seen, [&](i64 t, i64 n) { store(scores + t, cap * tangent(load(scores + t, n) / cap), n); });
  for (i64 t = 0; t < seen && a.learned; t++) {
    const i64 back = p - from - t;
    scores[t] += get(a.learned + a.buckets[back > a.reach ? a.reach : back < -a.reach ? -a.reach : back] * a.heads + h);
  }
  if (!a.slopes) return;
  const double slope = a.slopes[h];
  for (i64 t = 0; t < seen; t++) {
    double bias = -slope * std::abs((double)(p - from - t));
    if (a.rounded) bias = near16(near16((float)slope) * near16((float)(from + t)));
    scores[t] += (float)(bias * a.steep);
  }
}

// Floats in the order of `arrange`, which is the order of a sum of pairs: `unpair` stores both halves unchanged.
struct Arranged {
  float* at;
  Arranged operator+(i64 i) const { return {at + i}; }
};
static inline void unpair(Arranged z, V a, V b, i64) { store(z.at, a), store(z.at + LANES, b); }

// The queries of `gather`: query h sums its shares of values [from(h), to(h)), and its z lies at place(h). Here all see the same values.
struct Alike {
  i64 seen, stride;
  static constexpr bool ALIKE = true;
  i64 from(int) const { return 0; }
  i64 to(int) const { return seen; }
  i64 place(int h) const { return h * stride; }
};

// Add to H times M pairs of sums the shares of values [from, to), `pitch` apart for each query. WHOLE: the last pair is no shorter than others.
template <class T, int M, int H, bool WHOLE>
[[gnu::always_inline]] static inline void add_values(const T* v, const float* p, i64 pitch, const i64* at, i64 from, i64 to, i64 last, V* sums) {
  V all[2 * H * M];
#pragma GCC unroll 32
  for (int i = 0; i < 2 * H * M; i++) all[i] = sums[i];
  for (i64 t = from; t < to; t++) {
    const T* value = v + at[t];
    prefetch_key(v + at[t + SOON < to ? t + SOON : to - 1], (M - 1) * PAIR + last);
    V a[M], b[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      if (WHOLE || m < M - 1) pair(value + m * PAIR, a[m], b[m]);
      else pair(value + m * PAIR, a[m], b[m], last);
    }
#pragma GCC unroll 6
    for (int h = 0; h < H; h++) {
      const V share = set(p[h * pitch + t]);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        V* sum = all + 2 * (h * M + m);
        sum[0] = fma(share, a[m], sum[0]), sum[1] = fma(share, b[m], sum[1]);
      }
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < 2 * H * M; i++) sums[i] = all[i];
}

// Add what one query sees beyond the others.
template <class T, int M>
[[gnu::noinline]] static void add_alone(const T* v, const float* p, const i64* at, i64 from, i64 to, i64 last, V* sums) {
  add_values<T, M, 1, false>(v, p, 0, at, from, to, last, sums);
}

// Set z of each query h to norm[h] * sum over t of p[h * pitch + t] * value t, over M pairs of vectors, the last of `last` numbers. at: each
// value's offset in v.
template <class T, int M, int H, class Z, class Queries>
static void gather(const T* v, const float* p, i64 pitch, const i64* at, const Queries& queries, const float* norm, Z z, i64 last) {
  V sums[2 * H * M];
  for (V& sum : sums) sum = set(0.f);
  i64 low = queries.from(0), high = queries.to(0);  // what all see
  for (int h = 1; h < H; h++) low = queries.from(h) > low ? queries.from(h) : low, high = queries.to(h) < high ? queries.to(h) : high;
  const auto alone = [&](int h, i64 from, i64 to) { add_alone<T, M>(v, p + h * pitch, at, from, to, last, sums + 2 * h * M); };
  for (int h = 0; h < H && !Queries::ALIKE; h++) alone(h, queries.from(h), low < queries.to(h) ? low : queries.to(h));
  if (last == PAIR) add_values<T, M, H, true>(v, p, pitch, at, low, high, last, sums);
  else add_values<T, M, H, false>(v, p, pitch, at, low, high, last, sums);
  for (int h = 0; h < H && !Queries::ALIKE; h++) alone(h, low < high ? high : low < queries.to(h) ? low : queries.to(h), queries.to(h));
  for (int h = 0; h < H; h++)
    for (int m = 0; m < M; m++) {
      const V* sum = sums + 2 * (h * M + m);
      unpair(z + (queries.place(h) + m * PAIR), sum[0] * set(norm[h]), sum[1] * set(norm[h]), m < M - 1 ? PAIR : last);
    }
}

// Do the same for values of any width, with as many pairs of vectors at once as the registers hold.
template <class T, int H = 1, class Z, class Queries>
static void sum_up(const T* v, const float* p, i64 pitch, const i64* at, const Queries& queries, const float* norm, Z z, i64 width) {
  constexpr int MOST = H == 1 ? 4 : 2;
  for (i64 i = 0; i < width; i += MOST * PAIR) {
    const i64 left = width - i;
    const auto some = [&](auto m) {
      constexpr int M = decltype(m)::value;
      gather<T, M, H>(v + i, p, pitch, at, queries, norm, z + i, left < M * PAIR ? left - (M - 1) * PAIR : PAIR);
    };
    if constexpr (MOST == 4) {
      if (left > 3 * PAIR) some(std::integral_constant<int, 4>{});
      else if (left > 2 * PAIR) some(std::integral_constant<int, 3>{});
    }
    if (MOST == 2 || left <= 2 * PAIR) {
      if (left > PAIR) some(std::integral_constant<int, 2>{});
      else some(std::integral_constant<int, 1>{});
    }
  }
}

// Multiply n numbers by as many scales.
static inline void scale_by(float* x, const float* scales, i64 n) {
  steps(0, n, [&](i64 i, i64 some) { store(x + i, load(x + i, some) * load(scales + i, some), some); });
}

// The keys that a job reads: `all` of them from position `from` on, of which the row sees `seen`, the first at index `hidden`.
struct Reach {
  i64 from, all, hidden, seen;
  const i64 *keys, *values;  // the offset of each in k and in v
  const float *k_scales, *v_scales;
};

// Turn products `own` of head h of row r with these keys into its shares, at own + hidden, before they are divided, and write the tables.
// Returns what to multiply them by. The buffer extends LANES beyond the keys.
template <class T, class S>
static float share_out(const Attend<T, S>& a, i64 r, i64 h, const Reach& to, float* own) {
  const i64 first = a.columns ? 0 : to.hidden, count = a.columns ? to.all : to.seen;
  if constexpr (!std::is_same_v<S, T>) scale_by(own + first, to.k_scales + first, count);
  add_bias(a, h, a.positions[r], to.from + first, count, own + first);
  T* row = a.columns ? a.scores + (h * a.rows + r) * a.columns : nullptr;
  if (row) steps(0, count, [&](i64 t, i64 n) { store(row + t, load(own + t, n), n); });
  own += to.hidden;
  const float norm = 1.f / soften(own, to.seen, a.sinks ? get(a.sinks + h) : -INFINITY);
  if (row) {
    row = a.pattern + (h * a.rows + r) * a.columns;
    std::memset(row, 0, a.columns * sizeof(T));
    steps(0, to.seen, [&](i64 t, i64 n) { store(row + to.hidden + t, load(own + t, n) * set(norm), n); });
  }
  if constexpr (!std::is_same_v<S, T>) scale_by(own, to.v_scales + to.hidden, to.seen);
  return norm;
}

// Attend from heads h ... h + H - 1 of row r to the keys and values at these offsets. q, scores: buffers for H heads, `pitch` apart.
template <int H, class T, class S>
static void attend_to(const Attend<T, S>& a, i64 r, i64 h, const Reach& to, float* q, float* scores, i64 pitch) {
  const i64 at = r * a.heads + h;
  float norm[H];
  for (int j = 0; j < H; j++) arrange_for<S>(a.q + (at + j) * a.key, q + j * padded(a.key), a.key);
  score<S, H>(a.k, q, to.keys, to.all, a.key, (float)a.scale, scores, pitch);
  for (int j = 0; j < H; j++) norm[j] = share_out(a, r, h + j, to, scores + j * pitch);
  sum_up<S, H>(a.v, scores + to.hidden, pitch, to.values + to.hidden, Alike{to.seen, a.value}, norm, out_of<S>(a.z + at * a.value), a.value);
}

// Write the offsets and scales of `all` keys of group g from position `from` on, of the text whose pages `table` numbers.
template <class T, class S>
static void find_keys(const Attend<T, S>& a, const i64* table, i64 g, i64 from, i64 all, i64* keys, i64* values, float* k_scales, float* v_scales) {
  for (i64 t = 0, page = from / a.size, slot = from % a.size; t < all; t++) {
    const i64 row = (table[page] * a.size + slot) * a.groups + g;
    keys[t] = row * a.key, values[t] = row * a.value;
    if constexpr (!std::is_same_v<S, T>) k_scales[t] = get(a.k_scales + row), v_scales[t] = get(a.v_scales + row);
    if (++slot == a.size) slot = 0, page++;
  }
}

// ---- of few rows, or of rows that each have a text: pieces of one row each
template <class T, class S>
static i64 attend_few_pieces(const Attend<T, S>& a) {
  return a.rows * a.groups * parts(a.heads / a.groups, TOGETHER);
}
template <class T, class S>
static void attend_few(const Attend<T, S>& a, i64 job) {
  const i64 shared = a.heads / a.groups, parts = ::parts(shared, TOGETHER), jobs = a.groups * parts;
  // the rows of one text use a group's keys one after another, while these are in the cache
  const i64 r = a.pages ? job / jobs : job % a.rows, which = a.pages ? job % jobs : job / a.rows;
  const i64 g = which / parts, part = which % parts, h = g * shared + part * shared / parts, count = g * shared + (part + 1) * shared / parts - h;
  const i64 p = a.positions[r];
  // a row that sees no keys gives 0
  if (p < 0) return (void)std::memset(a.z + (r * a.heads + h) * a.value, 0, count * a.value * sizeof(T));
  const i64 first = a.first(p), seen = a.seen(p), from = a.columns ? a.start : first, all = a.columns ? a.columns : seen;
  const i64 size = ::parts(all, LANES) * LANES, pitch = size + LANES;
  float* q = scratch(TOGETHER * (padded(a.key) + pitch) + 6 * size);
  float *scores = q + TOGETHER * padded(a.key), *k_scales = scores + TOGETHER * pitch, *v_scales = k_scales + size;
  i64 *keys = (i64*)(v_scales + size), *values = keys + size;
  find_keys(a, a.table + r * a.pages, g, from, all, keys, values, k_scales, v_scales);
  const Reach to{from, all, first - from, seen, keys, values, k_scales, v_scales};
  fixed<TOGETHER>(count, [&](auto heads) { attend_to<heads>(a, r, h, to, q, scores, pitch); });
}

// ---- of texts: the pieces of one after those of another
template <class A, class P>
static i64 pieces_of_texts(const A& a, P pieces) {
  if (!a.runs) return pieces(a);
  i64 all = 0;
  for (i64 i = 0; i < a.runs[0]; i++) all += pieces(a.text(i));
  return all;
}
// Call piece(text, number) for the pieces that this thread takes, of which `pieces` counts those of a text.
template <class A, class P, class F>
static void each_text(const A& a, Work& work, P pieces, F piece) {
  A text = a.runs && a.runs[0] ? a.text(0) : a;
  i64 i = 0, begin = 0, count = pieces(text);
  for (i64 job; (job = work.next()) >= 0; piece(text, job - begin))
    while (job >= begin + count) begin += count, text = a.text(++i), count = pieces(text);
}

// ---- cross_attend: softmax(q k^T scale) v over each row's own keys and values: places [rows 3] are the address of its keys
// [S groups key], the address of its values [S groups value], and S
template <class T>
struct CrossAttend {
  const T* q;
  const i64* places;
  T* z;
  i64 rows, heads, groups, key, value, step;
  double scale;
  FIELDS(q, places, z, rows, heads, groups, key, value, step, scale)
};
template <class T>
static i64 cross_attend_pieces(const CrossAttend<T>& a) {
  return a.rows * a.heads;
}
template <class T>
static void cross_attend(const CrossAttend<T>& a, Work& work) {
  for (i64 job; (job = work.next()) >= 0;) {
    const i64 r = a.step ? job / a.heads : job % a.rows, h = a.step ? job % a.heads : job / a.rows, at = r * a.heads + h;
    const i64 g = h / (a.heads / a.groups), *place = a.places + r * a.step;
    const i64 seen = place[2], pitch = (seen + 15) / 16 * 16;
    T* z = a.z + at * a.value;
    if (seen < 1) {
      std::memset(z, 0, a.value * sizeof(T));
      continue;
    }
    float* q = scratch(padded(a.key) + 5 * pitch);
    float* scores = q + padded(a.key);
    i64 *keys = (i64*)(scores + pitch), *values = keys + pitch;
    for (i64 t = 0; t < seen; t++) keys[t] = (t * a.groups + g) * a.key, values[t] = (t * a.groups + g) * a.value;
    arrange(a.q + at * a.key, q, a.key);
    score((const T*)place[0], q, keys, seen, a.key, (float)a.scale, scores);
    const float norm = 1.f / soften(scores, seen);
    sum_up((const T*)place[1], scores, 0, values, Alike{seen, 0}, &norm, z, a.value);
  }
}
