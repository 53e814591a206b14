// Keys and values in int8: a head's numbers of a token are its codes times one scale, the largest of them over 127. The scale has the
// activations' dtype. All arithmetic is ops/held.py's, to the bit: a quotient in float, rounded to the nearest even whole number.
#pragma once
#include "walk.h"

using i8 = int8_t;

static inline V load(const i8* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  float each[LANES];
  for (i64 i = 0; i < LANES; i++) each[i] = p[i];
  return load(each);
#endif
}
// A pair of codes is its two halves, as of floats.
static inline void pair(const i8* p, V& a, V& b) { a = load(p), b = load(p + LANES); }
static inline void pair(const i8* p, V& a, V& b, i64 n) {
  if (n >= PAIR) return pair(p, a, b);
  i8 some[PAIR] = {};
  std::memcpy(some, p, n);
  pair(some, a, b);
}

// Write x [n] as floats in the order of a pair of S, with zeros up to padded(n).
template <class S, class T>
static inline void arrange_for(const T* x, float* to, i64 n) {
  if constexpr (std::is_same_v<S, T>) arrange(x, to, n);
  else
    for (i64 i = 0; i < n; i += PAIR) {
      const i64 left = n - i - LANES;
      store(to + i, load(x + i, n - i)), store(to + i + LANES, left > 0 ? load(x + i + LANES, left) : set(0.f));
    }
}
// Numbers that are written in the order of a pair of codes.
template <class T>
struct Halves {
  T* at;
  Halves operator+(i64 i) const { return {at + i}; }
};
template <class T>
static inline void unpair(Halves<T> z, V a, V b, i64 n) {
  store(z.at, a, n);
  if (n > LANES) store(z.at + LANES, b, n - LANES);
}
// Return z as `unpair` must be given it, so that a pair of S comes out in the order of z.
template <class S, class T>
static inline auto out_of(T* z) {
  if constexpr (std::is_same_v<S, T>) return z;
  else return Halves<T>{z};
}

// ---- store_int8: write the rows of x [rows, groups, width] to pools of codes and of scales, each at its position's row
template <class T>
struct StoreInt8 {
  const T* x;
  i8* codes;
  T* scales;
  const i64 *table, *positions;
  i64 rows, groups, width, size, pages;
  FIELDS(x, codes, scales, table, positions, rows, groups, width, size, pages)
};
template <class T>
static i64 store_int8_pieces(const StoreInt8<T>& a) {
  return a.rows;
}
template <class T>
static void store_int8(const StoreInt8<T>& a, Work& work) {
  for (i64 r; (r = work.next()) >= 0;) {
    const i64 p = a.positions[r], *table = a.table + r * a.pages;
    if (p < 0) continue;
    const i64 first = (table[p / a.size] * a.size + p % a.size) * a.groups;
    for (i64 g = 0; g < a.groups; g++) {
      const T* x = a.x + (r * a.groups + g) * a.width;
      i8* codes = a.codes + (first + g) * a.width;
      float most = 0.f;
      for (i64 i = 0; i < a.width; i++) {
        const float size = std::fabs(get(x + i));
        if (size > most || size != size) most = size;  // a NaN stays: then the scale is one, and so is every number of the row
      }
      put(a.scales + first + g, most / 127.f);
      const float scale = get(a.scales + first + g);
      for (i64 i = 0; i < a.width; i++) {
        const float code = std::nearbyint(get(x + i) / scale);
        codes[i] = code != code ? 0 : (i8)(code > 127.f ? 127.f : code < -127.f ? -127.f : code);
      }
    }
  }
}

// ---- held_int8: the rows at these positions as they are held, y [rows, groups, width]
template <class T>
struct HeldInt8 {
  const i8* codes;
  const T* scales;
  const i64 *table, *positions;
  T* y;
  i64 rows, groups, width, size, pages;
  FIELDS(codes, scales, table, positions, y, rows, groups, width, size, pages)
};
template <class T>
static i64 held_int8_pieces(const HeldInt8<T>& a) {
  return parts(a.rows, 16);
}
template <class T>
static void held_int8(const HeldInt8<T>& a, Work& work) {
  for (i64 job; (job = work.next()) >= 0;)
    for (i64 r = 16 * job; r < 16 * job + 16 && r < a.rows; r++) {
      const i64 p = a.positions[r], *table = a.table + r * a.pages;
      if (p < 0) {
        std::memset(a.y + r * a.groups * a.width, 0, a.groups * a.width * sizeof(T));
        continue;
      }
      const i64 first = (table[p / a.size] * a.size + p % a.size) * a.groups;
      for (i64 g = 0; g < a.groups; g++) {
        const i8* codes = a.codes + (first + g) * a.width;
        const V scale = set(get(a.scales + first + g));
        T* y = a.y + (r * a.groups + g) * a.width;
        i64 i = 0;
        for (; i + LANES <= a.width; i += LANES) store(y + i, load(codes + i) * scale);
        for (; i < a.width; i++) put(y + i, codes[i] * get(a.scales + first + g));
      }
    }
}
