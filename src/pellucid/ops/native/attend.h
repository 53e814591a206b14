// Keys and values in pages, and attention of a few rows over them where they lie.
//
// A request's position p lies in the pool's row table[p / size] * size + p % size. Row r of a call has the table at
// table + r * pages: rows of one request share theirs, pages being 0. The row at position p sees one stretch of positions up to p
// or, where that is farther, before `until`, and what it does not see is not read. What grows with the text is behind pointers, so that a recorded call serves every later step.
#pragma once
#include "walk.h"

// ---- store: rows of x to their places in a pool [rows of all pages, width]
template <class T>
struct Store {
  const T* x;
  T* pool;
  const i64 *table, *positions;
  i64 rows, width, size, pages;
};
template <class T>
static i64 store_pieces(const i64*) {
  return 1;
}
template <class T>
static void store_rows(const i64* words, Work& work) {
  auto& a = *(const Store<T>*)words;
  if (work.next() < 0) return;
  for (i64 r = 0; r < a.rows; r++) {
    const i64 p = a.positions[r], *table = a.table + r * a.pages;
    if (p >= 0) std::memcpy(a.pool + (table[p / a.size] * a.size + p % a.size) * a.width, a.x + r * a.width, a.width * sizeof(T));
  }
}

// ---- attend: softmax(q k^T scale + what the sight adds) v, one head of one row at a time
//
// window, chunk: 0 where there is none.  cap: a soft limit of scores, or 0.  sinks [heads]: one more key without a value.
// slopes [heads]: a bias of -slope * distance * steep; where rounded, of slope * key's position in bf16.
// learned [buckets heads]: a bias by distance, whose bucket is buckets[distance], -reach to reach, beyond which it stays.
template <class T>
struct Attend {
  const T *q, *k, *v;
  const i64 *table, *positions;
  T* z;
  const T* sinks;
  const double* slopes;
  const T* learned;
  const i64* buckets;
  i64 rows, heads, groups, key, value, size, pages, window, chunk, until, rounded, reach;
  double scale, cap, steep;
  i64 first(i64 p) const {  // the first position that p sees
    i64 from = window && p >= window ? p - window + 1 : 0;
    return chunk && p / chunk * chunk > from ? p / chunk * chunk : from;
  }
  i64 seen(i64 p) const { return (until > p + 1 ? until : p + 1) - first(p); }  // how many, from there on
};

// Eight sums of eight lanes each, all in the same order.
static inline __m256 totals(const V* a) {
  __m256 p = _mm256_hadd_ps(_mm256_hadd_ps(fold(a[0]), fold(a[1])), _mm256_hadd_ps(fold(a[2]), fold(a[3])));
  __m256 q = _mm256_hadd_ps(_mm256_hadd_ps(fold(a[4]), fold(a[5])), _mm256_hadd_ps(fold(a[6]), fold(a[7])));
  return _mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
}

// scores[t] = q . key t for t in [0, seen), eight keys at a time; `at` says where each key begins.
template <class T>
static void score(const T* k, const float* q, const i64* at, i64 seen, i64 width, float scale, float* scores) {
  for (i64 t = 0; t < seen; t += 8) {
    V sum[8], a, b;
    const T* key[8];
    for (int j = 0; j < 8; j++) sum[j] = set(0.f), key[j] = k + at[t + j < seen ? t + j : seen - 1];
    i64 i = 0;
    for (; i + PAIR <= width; i += PAIR)
      for (int j = 0; j < 8; j++) {
        pair(key[j] + i, a, b);
        sum[j] = fma(b, load(q + i + LANES), fma(a, load(q + i), sum[j]));
      }
    if (i < width)
      for (int j = 0; j < 8; j++) {
        pair(key[j] + i, a, b, width - i);
        sum[j] = fma(b, load(q + i + LANES), fma(a, load(q + i), sum[j]));
      }
    _mm256_storeu_ps(scores + t, _mm256_mul_ps(totals(sum), _mm256_set1_ps(scale)));
  }
}

// Scores become e^(score - top) in place; the sum of them and of the sink is returned. There is room up to a multiple of LANES.
static float soften(float* scores, i64 seen, float sink = -INFINITY) {
  const i64 room = (seen + LANES - 1) / LANES * LANES;
  for (i64 t = seen; t < room; t++) scores[t] = -INFINITY;
  V top = load(scores), sum = set(0.f);
  for (i64 t = LANES; t < room; t += LANES) top = max(top, load(scores + t));
  const V high = max(set(largest(top)), set(sink));
  for (i64 t = 0; t < room; t += LANES) store(scores + t, exponent(load(scores + t) - high));
  for (i64 t = seen; t < room; t++) scores[t] = 0.f;
  for (i64 t = 0; t < room; t += LANES) sum = sum + load(scores + t);
  return sink == -INFINITY ? total(sum) : total(sum) + total(exponent(set(sink) - high)) / LANES;
}

// What changes scores of keys `from`, from + 1 ... at position p: the soft limit, then the slope of head h.
template <class T>
static void lean(const Attend<T>& a, i64 h, i64 p, i64 from, i64 seen, float* scores) {
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

// Floats in the order of `arrange`: a sum of pairs is so as it stands.
struct Arranged {
  float* at;
  Arranged operator+(i64 i) const { return {at + i}; }
};
static inline void unpair(Arranged z, V a, V b, i64) { store(z.at, a), store(z.at + LANES, b); }

// z = sum of p[t] * value t, over M pairs of vectors (the last one of `last` numbers).
template <class T, int M, class Z>
static void gather(const T* v, const float* p, const i64* at, i64 seen, float norm, Z z, i64 last) {
  V even[M], odd[M], a, b;
  for (int m = 0; m < M; m++) even[m] = odd[m] = set(0.f);
  for (i64 t = 0; t < seen; t++) {
    const V share = set(p[t]);
    const T* value = v + at[t];
    for (int m = 0; m < M - 1; m++) {
      pair(value + m * PAIR, a, b);
      even[m] = fma(share, a, even[m]), odd[m] = fma(share, b, odd[m]);
    }
    pair(value + (M - 1) * PAIR, a, b, last);
    even[M - 1] = fma(share, a, even[M - 1]), odd[M - 1] = fma(share, b, odd[M - 1]);
  }
  for (int m = 0; m < M; m++) unpair(z + m * PAIR, even[m] * set(norm), odd[m] * set(norm), m < M - 1 ? PAIR : last);
}

// z = the shares p of `seen` values, times norm, at most four pairs of vectors at once.
template <class T, class Z>
static void sum_up(const T* v, const float* p, const i64* at, i64 seen, float norm, Z z, i64 width) {
  for (i64 i = 0; i < width; i += 4 * PAIR) {
    const i64 left = width - i;
    if (left > 3 * PAIR) gather<T, 4>(v + i, p, at, seen, norm, z + i, left < 4 * PAIR ? left - 3 * PAIR : PAIR);
    else if (left > 2 * PAIR) gather<T, 3>(v + i, p, at, seen, norm, z + i, left - 2 * PAIR);
    else if (left > PAIR) gather<T, 2>(v + i, p, at, seen, norm, z + i, left - PAIR);
    else gather<T, 1>(v + i, p, at, seen, norm, z + i, left);
  }
}

template <class T>
static i64 attend_pieces(const i64* words) {
  auto& a = *(const Attend<T>*)words;
  return a.rows * a.heads;
}
template <class T>
static void attend(const i64* words, Work& work) {
  auto& a = *(const Attend<T>*)words;
  for (i64 job; (job = work.next()) >= 0;) {
    // a text's rows meet a head's keys one after another, while they are near
    const i64 r = a.pages ? job / a.heads : job % a.rows, h = a.pages ? job % a.heads : job / a.rows, at = r * a.heads + h;
    const i64 g = h / (a.heads / a.groups), p = a.positions[r], *table = a.table + r * a.pages;
    T* z = a.z + at * a.value;
    if (p < 0) {  // a row that may see nothing gives 0
      std::memset(z, 0, a.value * sizeof(T));
      continue;
    }
    const i64 from = a.first(p), seen = a.seen(p), room = (seen + 15) / 16 * 16;
    float* q = scratch(padded(a.key) + 5 * room);
    float* scores = q + padded(a.key);
    i64 *keys = (i64*)(scores + room), *values = keys + room;
    for (i64 t = 0, page = from / a.size, slot = from % a.size; t < seen; t++) {
      const i64 row = (table[page] * a.size + slot) * a.groups + g;
      keys[t] = row * a.key, values[t] = row * a.value;
      if (++slot == a.size) slot = 0, page++;
    }
    arrange(a.q + at * a.key, q, a.key);
    score(a.k, q, keys, seen, a.key, (float)a.scale, scores);
    lean(a, h, p, from, seen, scores);
    sum_up(a.v, scores, values, seen, 1.f / soften(scores, seen, a.sinks ? get(a.sinks + h) : -INFINITY), z, a.value);
  }
}

// ---- listen: softmax(q k^T scale) v over keys and values that lie each row's own way: places [rows 3] are the address of its keys
// [S groups key], of its values [S groups value], and S
template <class T>
struct Listen {
  const T* q;
  const i64* places;
  T* z;
  i64 rows, heads, groups, key, value, step;
  double scale;
};
template <class T>
static i64 listen_pieces(const i64* words) {
  auto& a = *(const Listen<T>*)words;
  return a.rows * a.heads;
}
template <class T>
static void listen(const i64* words, Work& work) {
  auto& a = *(const Listen<T>*)words;
  for (i64 job; (job = work.next()) >= 0;) {
    const i64 r = a.step ? job / a.heads : job % a.rows, h = a.step ? job % a.heads : job / a.rows, at = r * a.heads + h;
    const i64 g = h / (a.heads / a.groups), *place = a.places + r * a.step;
    const i64 seen = place[2], room = (seen + 15) / 16 * 16;
    T* z = a.z + at * a.value;
    if (seen < 1) {
      std::memset(z, 0, a.value * sizeof(T));
      continue;
    }
    float* q = scratch(padded(a.key) + 5 * room);
    float* scores = q + padded(a.key);
    i64 *keys = (i64*)(scores + room), *values = keys + room;
    for (i64 t = 0; t < seen; t++) keys[t] = (t * a.groups + g) * a.key, values[t] = (t * a.groups + g) * a.value;
    arrange(a.q + at * a.key, q, a.key);
    score((const T*)place[0], q, keys, seen, a.key, (float)a.scale, scores);
    sum_up((const T*)place[1], scores, values, seen, 1.f / soften(scores, seen), z, a.value);
  }
}
