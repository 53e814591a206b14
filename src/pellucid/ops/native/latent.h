// Attention over cached latents in the absorbed form (MLA, arXiv 2405.04434): a head's query is multiplied by up_k, attends to the latents
// in pages, and the weighted sum of latents is multiplied by up_v. All heads share one rotary key.
//
// A piece is a few heads of a few rows, in float from end to end. A latent is loaded once for these heads, and a head's matrices serve
// the rows one after another, while they are in the cache.
#pragma once
#include "attend.h"
#include "linear.h"

template <class T>
struct Latent {
  const T *q, *q_rot, *latent, *shared, *up_k, *up_v;
  const i64 *table, *positions;
  T* z;
  i64 rows, heads, key, rotary, value, width, size, pages, window, chunk, row_step, head_step, up_step;
  double scale;
  FIELDS(q, q_rot, latent, shared, up_k, up_v, table, positions, z, rows, heads, key, rotary, value, width, size, pages, window, chunk, row_step, head_step, up_step, scale)
  i64 near() const {  // rows in a piece: eight, or fewer if that would leave few pieces
    const i64 rows_a_piece = rows * parts(heads, TOGETHER) / 64;
    return rows_a_piece < 1 ? 1 : rows_a_piece > 8 ? 8 : rows_a_piece;
  }
};

// Set gathered to the weighted sums of latents for H heads of row r. moved: queries times up_k.  rotated: their rotary parts.
template <class T, int H>
static void gather_latents(const Latent<T>& a, i64 r, const float* moved, const float* rotated, float* gathered, float* space) {
  Attend<T> mask{};
  mask.window = a.window, mask.chunk = a.chunk;
  const i64 p = a.positions[r], *table = a.table + r * a.pages, from = mask.first(p), seen = p + 1 - from, size = parts(seen, 16) * 16;
  float *scores = space, *rotary_scores = scores + H * size, norm[H];
  i64 *rows = (i64*)(rotary_scores + H * size), *keys = rows + size;
  for (i64 t = 0, page = from / a.size, slot = from % a.size; t < seen; t++) {
    const i64 row = table[page] * a.size + slot;
    rows[t] = row * a.width, keys[t] = row * a.rotary;
    if (++slot == a.size) slot = 0, page++;
  }
  score<T, H>(a.latent, moved, rows, seen, a.width, (float)a.scale, scores, size);
  score<T, H>(a.shared, rotated, keys, seen, a.rotary, (float)a.scale, rotary_scores, size);
  for (int h = 0; h < H; h++) {
    for (i64 t = h * size; t < h * size + seen; t++) scores[t] += rotary_scores[t];
    norm[h] = 1.f / soften(scores + h * size, seen);
  }
  sum_up<T, H>(a.latent, scores, size, rows, Alike{seen, padded(a.width)}, norm, Arranged{gathered}, a.width);
}

template <class T>
static i64 latent_pieces(const Latent<T>& a) {
  return parts(a.rows, a.near()) * parts(a.heads, TOGETHER);
}
template <class T>
static void latent(const Latent<T>& a, Work& work) {
  const i64 near = a.near(), blocks = parts(a.rows, near), shares = parts(a.heads, TOGETHER), wide = padded(a.width), narrow = padded(a.rotary);
  i64 longest = 0;
  for (i64 r = 0; r < a.rows; r++) longest = a.positions[r] >= longest ? a.positions[r] + 1 : longest;
  for (i64 job; (job = work.next()) >= 0;) {
    const i64 share = job / blocks, first = job % blocks * near, last = first + near < a.rows ? first + near : a.rows;
    const i64 head = share * a.heads / shares, heads = (share + 1) * a.heads / shares - head;
    float* moved = scratch(near * heads * 2 * wide + heads * narrow + parts(a.key, 2) * 2 * 3 + (2 * heads + 4) * (longest + 16));
    float *gathered = moved + near * heads * wide, *rotated = gathered + near * heads * wide, *q = rotated + heads * narrow;
    i64* steps = (i64*)(q + parts(a.key, 2) * 2);
    float* space = (float*)(steps + a.key);
    const auto each = [&](auto f) {  // f(row, head, offset of its latent) for rows that see a key; the others give 0
      for (i64 h = 0; h < heads; h++)
        for (i64 r = first; r < last; r++)
          if (a.positions[r] >= 0) f(r, head + h, ((r - first) * heads + h) * wide);
    };
    for (i64 i = 0; i < a.key; i++) steps[i] = i * a.width;
    each([&](i64 r, i64 h, i64 at) {
      const float one = 1.f;
      for (i64 i = 0; i < a.key; i++) q[i] = get(a.q + r * a.row_step + h * a.head_step + i);
      sum_up(a.up_k + h * a.up_step, q, 0, steps, Alike{a.key, 0}, &one, Arranged{moved + at}, a.width);
    });
    for (i64 r = first; r < last; r++) {
      std::memset(a.z + (r * a.heads + head) * a.value, 0, heads * a.value * sizeof(T));
      if (a.positions[r] < 0) continue;
      for (i64 h = 0; h < heads; h++) arrange(a.q_rot + (r * a.heads + head + h) * a.rotary, rotated + h * narrow, a.rotary);
      const i64 at = (r - first) * heads * wide;
      fixed<TOGETHER>(heads, [&](auto count) { gather_latents<T, count>(a, r, moved + at, rotated, gathered + at, space); });
    }
    each([&](i64 r, i64 h, i64 at) {
      T* z = a.z + (r * a.heads + h) * a.value;
      for (i64 i = 0; i < a.value; i++) {
        V sum[SUMS] = {};
        dot<T, 1, 1>(a.up_v + h * a.up_step + i * a.width, 0, gathered + at, a.width, sum);
        put(z + i, total(joined(sum)));
      }
    });
  }
}
