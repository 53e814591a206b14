// Attention over a latent past, absorbed (MLA, arXiv 2405.04434): a head's query goes through up_k to meet the latents where they lie in
// pages, and what it gathers of them goes through up_v. All heads share one rotary key.
//
// One head of one row at a time, in float from end to end; the rows of a head come one after another, while its matrices are near.
#pragma once
#include "attend.h"
#include "linear.h"

template <class T>
struct Latent {
  const T *q, *q_rot, *latent, *shared, *up_k, *up_v;
  const i64 *table, *positions;
  T* z;
  i64 rows, heads, key, turned, value, width, size, pages, window, chunk, row_step, head_step, up_step;
  double scale;
};
template <class T>
static i64 latent_pieces(const i64* words) {
  auto& a = *(const Latent<T>*)words;
  return a.rows * a.heads;
}
template <class T>
static void latent(const i64* words, Work& work) {
  auto& a = *(const Latent<T>*)words;
  Attend<T> sight{};
  sight.window = a.window, sight.chunk = a.chunk;
  for (i64 job; (job = work.next()) >= 0;) {
    const i64 h = job / a.rows, r = job % a.rows, p = a.positions[r], *table = a.table + r * a.pages;
    T* z = a.z + (r * a.heads + h) * a.value;
    if (p < 0) {  // a row that may see nothing gives 0
      std::memset(z, 0, a.value * sizeof(T));
      continue;
    }
    const i64 from = sight.first(p), seen = p + 1 - from, room = (seen + 15) / 16 * 16, wide = padded(a.width);
    float* moved = scratch(2 * wide + padded(a.turned) + (a.key + 1) / 2 * 2 * 3 + 6 * room);
    float *gathered = moved + wide, *turned = gathered + wide, *q = turned + padded(a.turned), *scores = q + (a.key + 1) / 2 * 2;
    float* beside = scores + room;
    i64 *rows = (i64*)(beside + room), *keys = rows + room, *steps = keys + room;
    for (i64 t = 0, page = from / a.size, slot = from % a.size; t < seen; t++) {
      const i64 row = table[page] * a.size + slot;
      rows[t] = row * a.width, keys[t] = row * a.turned;
      if (++slot == a.size) slot = 0, page++;
    }
    for (i64 i = 0; i < a.key; i++) q[i] = get(a.q + r * a.row_step + h * a.head_step + i), steps[i] = i * a.width;
    const float one = 1.f;
    sum_up(a.up_k + h * a.up_step, q, 0, steps, a.key, &one, Arranged{moved}, 0, a.width);
    arrange(a.q_rot + (r * a.heads + h) * a.turned, turned, a.turned);
    score(a.latent, moved, rows, seen, a.width, (float)a.scale, scores);
    score(a.shared, turned, keys, seen, a.turned, (float)a.scale, beside);
    for (i64 t = 0; t < seen; t++) scores[t] += beside[t];
    const float norm = 1.f / soften(scores, seen);
    sum_up(a.latent, scores, 0, rows, seen, &norm, Arranged{gathered}, 0, a.width);
    for (i64 i = 0; i < a.value; i++) {
      V even = set(0.f), odd = even;
      dot<T, 1, 1>(a.up_v + h * a.up_step + i * a.width, 0, gathered, 0, a.width, &even, &odd);
      put(z + i, total(even + odd));
    }
  }
}
