// A burst: a plan replayed several times by one call, with the choice of each row's token between two replays.
//
// The one idea: a burst ends before the first choice that needs Python, and leaves that step's logits, so that the caller makes this choice
// as it makes that of a single step. A stop, a sum that is not sure and a row that is not finite have no case here.
#pragma once
#include <algorithm>
#include <ctime>

#include "walk.h"

struct Burst {
  i64 *tokens, *positions, *lengths;  // the plan's inputs, one number a row
  i64* written;                       // new tokens of each row's text, which `draws` read
  const i64 *best, *drawn;            // of each row: where its largest logit is, and the token that `draws` has chosen
  const i64 *sampled, *stops, *ends;  // of each row: 1 if its token is drawn, and where its stops end, one row's behind another's
  i64* out;                           // the tokens, [steps rows]; -1 first in the last row: none are chosen
  const char* logits;
  const i64* interrupt;  // 1: another thread has called
  const i64* draws;      // a list of calls
  i64 draw_calls, rows, width, half, steps, nanoseconds;
  FIELDS(tokens, positions, lengths, written, best, drawn, sampled, stops, ends, out, logits, interrupt, draws, draw_calls, rows, width, half, steps, nanoseconds)
};
static_assert(in_order<Burst>(), "FIELDS must name every field of the struct, in its order");

static inline i64 nanoseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (i64)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Write each row's token to `to`. False if a row's cannot be chosen here, or ends its text.
static bool chosen(const Burst& b, int threads, const Op* ops, i64* to) {
  for (i64 r = 0; r < b.rows; r++) {
    const i64 at = r * b.width + b.best[r];
    if (!std::isfinite(b.half ? get((const u16*)b.logits + at) : get((const float*)b.logits + at))) return false;
  }
  if (b.draw_calls) run_list(b.draws, b.draw_calls, threads, ops);
  for (i64 r = 0; r < b.rows; r++) {
    to[r] = b.sampled[r] ? b.drawn[r] : b.best[r];
    if (to[r] < 0) return false;
    for (i64 i = r ? b.ends[r - 1] : 0; i < b.ends[r]; i++)
      if (b.stops[i] == to[r]) return false;
  }
  return true;
}

// Replay the plan up to `steps` times, and choose tokens after each. Returns the number of steps that ran. No step begins after the interrupt,
// or later than `nanoseconds`.
static i64 run_burst(const i64* words, i64 count, int threads, const Op* ops, const Burst& b) {
  const i64 until = nanoseconds() + b.nanoseconds;
  for (i64 step = 0;; step++) {
    run_list(words, count, threads, ops);
    i64* const to = b.out + step * b.rows;
    if (!chosen(b, threads, ops, to)) to[0] = -1;
    if (to[0] < 0 || step + 1 >= b.steps || __atomic_load_n(b.interrupt, __ATOMIC_ACQUIRE) || nanoseconds() >= until) return step + 1;
    for (i64 r = 0; r < b.rows; r++) {
      b.tokens[r] = to[r], b.positions[r]++, b.written[r]++;
      b.lengths[r] = std::max(b.lengths[r], b.positions[r] + 1);
    }
  }
}
