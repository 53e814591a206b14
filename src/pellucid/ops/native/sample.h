// A draw from a vocabulary's logits: division by a temperature, the indices between two bounds, and the token itself.
//
// The one idea: one pass over the row leaves of each run of RUN numbers the largest and the sum of e^x, and what follows looks into the
// few runs that matter. Sums are in double and e^x has a relative error below 1e-13, so that a choice with a margin is the same in any
// arithmetic; a draw without it is left to the caller.
#pragma once
#include <algorithm>
#include <vector>

#include "rows.h"

// ---- cool: (x - top) / by, each rounded to float
struct Cool {
  const float* x;
  float* y;
  i64 n;
  double top, by;
  FIELDS(x, y, n, top, by)
};
constexpr i64 SHARE = 16 << 10;
static i64 cool_pieces(const Cool& a) { return parts(a.n, SHARE); }
static void cool(const Cool& a, Work& work) {
  const V top = set((float)a.top), by = set((float)a.by);
  for (i64 p; (p = work.next()) >= 0;)
    steps(p * SHARE, p * SHARE + SHARE < a.n ? p * SHARE + SHARE : a.n, [&](i64 i, i64 n) { store(a.y + i, (load(a.x + i, n) - top) / by, n); });
}

// ---- indices_between: the indices of the numbers in [low, high], in order, and their count
struct IndicesBetween {
  const float* x;
  i64 *to, *count, n;
  double low, high;
  FIELDS(x, to, count, n, low, high)
};
static i64 indices_between_pieces(const IndicesBetween&) { return 1; }
static void indices_between(const IndicesBetween& a, Work& work) {
  if (work.next() < 0) return;
  const V low = set((float)a.low), high = set((float)a.high);
  i64 written = 0;
  steps(0, a.n, [&](i64 i, i64 n) {
    unsigned bits = inside(load(a.x + i, n), low, high) & ((1u << n) - 1);
    if (!bits) return;
    if (n == LANES) places(a.to + written, i, bits), written += __builtin_popcount(bits);
    else
      for (; bits; bits &= bits - 1) a.to[written++] = i + __builtin_ctz(bits);
  });
  *a.count = written;
}

// Return the bits of the n tokens from i on in a mask of 32 tokens a word; all of them where there is none. i: a multiple of LANES.
static inline unsigned allowed_bits(const unsigned* allowed, i64 i, i64 n) {
  return (allowed ? allowed[i >> 5] >> (i & 31) : ~0u) & ((1u << n) - 1);
}
// Write -infinity in place of the lanes that are not in `bits`.
static inline void cut_lanes(float* y, unsigned bits, i64 n) {
  for (unsigned cut = ~bits & ((1u << n) - 1); cut; cut &= cut - 1) y[__builtin_ctz(cut)] = -INFINITY;
}

// ---- largest_allowed: the lowest index of the largest of the tokens that a mask allows; -1 if that is not finite, or one of them is NaN
template <class T>
struct LargestAllowed {
  const T* x;
  const unsigned* allowed;
  i64 *to, n;
  FIELDS(x, allowed, to, n)
};
template <class T>
static i64 largest_allowed_pieces(const LargestAllowed<T>&) {
  return 1;
}
template <class T>
static void largest_allowed(const LargestAllowed<T>& a, Work& work) {
  if (work.next() < 0) return;
  float high = -INFINITY;
  i64 at = -1;
  bool nan = false;
  for (i64 from = 0; from < a.n; from += 32) {
    if (!a.allowed[from / 32]) continue;
    steps(from, from + 32 < a.n ? from + 32 : a.n, [&](i64 i, i64 n) {
      const unsigned bits = allowed_bits(a.allowed, i, n);
      if (!bits) return;
      float y[LANES];
      std::fill(y, y + LANES, -INFINITY);
      store(y, load(a.x + i, n), n), cut_lanes(y, bits, n);
      nan |= any_nan(load(y));
      const float peak = largest(load(y));
      if (peak > high) high = peak, at = i + (std::find(y, y + LANES, peak) - y);
    });
  }
  *a.to = nan || !std::isfinite(high) ? -1 : at;
}

// ---- runs: y = (x - the largest) / by, or x if by is 0, and -infinity for a token that is not allowed; and of each run of y the largest
// and, if asked, the sum of e^(y - the largest of all)
template <class T>
struct Runs {
  const T* x;
  const i64* best;  // where the largest of those allowed is
  const unsigned* allowed;  // a bit for each token; null: all are
  float *y, *largest;
  double* masses;
  i64 n;
  double by;
  FIELDS(x, best, allowed, y, largest, masses, n, by)
};
constexpr i64 RUN = 256, RUNS_A_PIECE = SHARE / RUN;
static inline D exponent(D x) {  // e^x for x <= 0; below -700, e^-700
  x = most(x, twice(-700));
  const D n = nearest(x * twice(1.4426950408889634)), r = fma(n, twice(-1.9082149292705877e-10), fma(n, twice(-0.6931471803691238), x));
  D p = twice(1.0 / 39916800);
  for (double f : {3628800., 362880., 40320., 5040., 720., 120., 24., 6., 2., 1., 1.}) p = fma(p, r, twice(1 / f));
  return p * power_of_two(n);
}
template <class T>
static i64 runs_pieces(const Runs<T>& a) {
  return parts(a.n, SHARE);
}
template <class T>
static void runs(const Runs<T>& a, Work& work) {
  const float top = get(a.x + *a.best);
  const V high = set(top), by = set((float)a.by);
  const D from = twice(a.by != 0 ? 0. : (double)top);
  for (i64 p; (p = work.next()) >= 0;)
    for (i64 r = p * RUNS_A_PIECE; r < (p + 1) * RUNS_A_PIECE && r * RUN < a.n; r++) {
      if (a.allowed && std::all_of(a.allowed + r * RUN / 32, a.allowed + parts(std::min(r * RUN + RUN, a.n), 32), [](unsigned bits) { return !bits; })) {
        a.largest[r] = -INFINITY;  // so that its y is not read
        if (a.masses) a.masses[r] = 0;
        continue;
      }
      V peak = set(-INFINITY);
      D even = twice(0), odd = twice(0);
      steps(r * RUN, r * RUN + RUN < a.n ? r * RUN + RUN : a.n, [&](i64 i, i64 n) {
        float y[LANES];
        std::fill(y, y + LANES, -INFINITY);
        const unsigned bits = allowed_bits(a.allowed, i, n);
        if (!bits) return store(a.y + i, load(y), n);
        const V v = load(a.x + i, n);
        store(y, a.by != 0 ? (v - high) / by : v, n);
        if (a.allowed) cut_lanes(y, bits, n);
        store(a.y + i, load(y), n);
        peak = max(peak, load(y));
        if (a.masses) even = even + exponent(widened(y) - from), odd = odd + exponent(widened(y + HALF) - from);
      });
      a.largest[r] = largest(peak);
      if (!a.masses) continue;
      double each[HALF], sum = 0;
      store(each, even + odd);
      for (double e : each) sum += e;
      a.masses[r] = sum;
    }
}

// ---- draw: the index of a draw from the softmax of y [n], cut to the k largest, then to the fewest that sum to p, then to those no more
// than -near below the largest; of ties the earlier is kept. -1 if a sum is too near a bound to be sure, or there is nothing to draw from
struct Draw {
  const i64* best;
  const float *y, *largest;  // as `runs` has left them
  const double* masses;      // read if k cuts nothing
  const i64* written;  // the step of the draw
  i64* to;
  i64 n, k, state;  // state: of the seed's random numbers
  double p, near, margin;  // margin: of the total, less than which is not sure
  FIELDS(best, y, largest, masses, written, to, n, k, state, p, near, margin)
};

// Return output number n of SplitMix64 after a state, as a number in [0, 1): see ops/sampling/uniform.py.
static inline double uniform(i64 state, i64 n) {
  uint64_t z = (uint64_t)state + ((uint64_t)n + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

// What is kept of a row: the numbers above `least`, and the first `ties` of those equal to it.
struct Kept {
  float least = -INFINITY;
  i64 ties = INT64_MAX;
};
// Call f(i, bits, y) for vectors at i of which some lanes are kept, in order. bits: these lanes.
template <class F>
static void each_kept(const Draw& a, Kept kept, F f) {
  for (i64 r = 0; r * RUN < a.n; r++) {
    if (a.largest[r] < kept.least || a.largest[r] == -INFINITY) continue;
    steps(r * RUN, r * RUN + RUN < a.n ? r * RUN + RUN : a.n, [&](i64 i, i64 n) {
      const V v = load(a.y + i, n), least = set(kept.least);
      unsigned bits = inside(v, least, set(INFINITY)) & ((1u << n) - 1);
      if (!bits) return;
      unsigned equal = inside(v, least, least) & bits;
      for (; __builtin_popcount(equal) > kept.ties; equal &= ~(1u << (31 - __builtin_clz(equal)))) bits &= ~(1u << (31 - __builtin_clz(equal)));
      if (kept.ties < INT64_MAX) kept.ties -= __builtin_popcount(equal);
      if (bits) f(i, bits, v);
    });
  }
}
// Write e^(v - top) of each lane.
static inline void exponents(V v, double top, double* to) {
  float y[LANES];
  store(y, v);
  store(to, exponent(widened(y) - twice(top))), store(to + HALF, exponent(widened(y + HALF) - twice(top)));
}
// Write the mass of each run's kept numbers, and return the sum.
static double kept_masses(const Draw& a, Kept kept, double top, double* masses) {
  std::fill(masses, masses + parts(a.n, RUN), 0.);
  each_kept(a, kept, [&](i64 i, unsigned bits, V v) {
    double each[LANES], sum = 0;
    exponents(v, top, each);
    for (int j = 0; j < LANES; j++) sum += bits >> j & 1 ? each[j] : 0.;
    masses[i / RUN] += sum;
  });
  double total = 0;
  for (i64 r = 0; r < parts(a.n, RUN); r++) total += masses[r];
  return total;
}
// True if `share` lies between two sums, and further than `margin` from both.
static inline bool sure(double below, double share, double above, double margin) {
  return above - share > margin && share - below > margin;
}

// Return what is kept of the k largest, of ties the earlier.
static Kept k_largest(const Draw& a) {
  const i64 runs = parts(a.n, RUN);
  std::vector<float> some(a.largest, a.largest + runs);
  Kept kept;
  if (a.k <= runs) {  // k runs have a number as large, so k numbers are
    std::nth_element(some.begin(), some.begin() + a.k - 1, some.end(), std::greater<float>());
    kept.least = some[a.k - 1];
  }
  some.clear();
  each_kept(a, kept, [&](i64 i, unsigned bits, V) {
    for (; bits; bits &= bits - 1) some.push_back(a.y[i + __builtin_ctz(bits)]);
  });
  if ((i64)some.size() < a.k) return {};  // all others are -infinity
  std::nth_element(some.begin(), some.begin() + a.k - 1, some.end(), std::greater<float>());
  kept.least = some[a.k - 1], kept.ties = a.k;
  for (float y : some) kept.ties -= y > kept.least;
  return kept;
}

struct Candidate {
  float y;
  double mass;
};
// Find the fewest of `some`, the largest first, that come from `before` to `share`, and what is kept then. False if that is not sure.
static bool fewest(std::vector<Candidate>& some, double before, double share, double margin, Kept& kept) {
  Candidate *c = some.data(), *end = c + some.size();
  while (c < end) {
    const float p = c[0].y, q = c[(end - c) / 2].y, r = end[-1].y;
    const float pivot = std::max(std::min(p, q), std::min(std::max(p, q), r));  // the middle one
    Candidate* const equal = std::partition(c, end, [&](const Candidate& one) { return one.y > pivot; });
    Candidate* const lower = std::partition(equal, end, [&](const Candidate& one) { return one.y == pivot; });
    double sum = before;
    for (Candidate* one = c; one < equal; one++) sum += one->mass;
    if (sum >= share) {
      end = equal;
      continue;
    }
    for (i64 ties = 1; ties <= lower - equal; ties++, sum += equal->mass)
      if (sum + equal->mass >= share) {
        kept = {pivot, ties};
        return sure(sum, share, sum + equal->mass, margin);
      }
    before = sum, c = lower;
  }
  return false;
}

// Cut what is kept, of mass `total`, to the fewest that sum to p: by the masses of levels from the top down, then within the level that
// comes to it. False if that is not sure.
static bool nucleus(const Draw& a, double top, double total, Kept& kept) {
  constexpr int LEVELS = 512;
  const double deepest = std::log((double)a.n / std::max(1 - a.p, 1e-9)) + 1;  // all deeper numbers sum to less than 1 - p
  for (double depth : {4., deepest}) {  // most often all that matters lies near the top
    const Kept near = (float)(top - depth) > kept.least ? Kept{(float)(top - depth)} : kept;
    const V high = set((float)top), rate = set((float)((LEVELS - 1) / depth)), last = set((float)(LEVELS - 1));
    double level[LEVELS] = {}, before = 0;
    each_kept(a, near, [&](i64, unsigned bits, V v) {
      double each[LANES];
      int at[LANES];
      exponents(v, top, each), cut(at, min((high - v) * rate, last));
      for (; bits; bits &= bits - 1) level[at[__builtin_ctz(bits)]] += each[__builtin_ctz(bits)];
    });
    int reached = 0;
    while (reached < LEVELS && before + level[reached] < a.p * total) before += level[reached++];
    if (reached == LEVELS) continue;
    std::vector<Candidate> some;
    each_kept(a, near, [&](i64, unsigned bits, V v) {
      double each[LANES];
      float y[LANES];
      int at[LANES];
      cut(at, min((high - v) * rate, last));
      unsigned own = 0;
      for (int j = 0; j < LANES; j++) own |= (unsigned)(at[j] == reached) << j;
      if (!(own &= bits)) return;
      store(y, v), exponents(v, top, each);
      for (; own; own &= own - 1) some.push_back({y[__builtin_ctz(own)], each[__builtin_ctz(own)]});
    });
    const Kept outer = kept;
    if (!fewest(some, before, a.p * total, a.margin * total, kept)) return false;
    if (kept.least == outer.least) kept.ties = std::min(kept.ties, outer.ties);
    return true;
  }
  return false;
}

static i64 drawn(const Draw& a) {
  const double top = a.y[*a.best], u = uniform(a.state, *a.written);
  if (!std::isfinite(top)) return -1;
  const i64 runs = parts(a.n, RUN);
  const bool fewer = a.k && a.k < a.n;
  Kept kept = fewer ? k_largest(a) : Kept{};
  std::vector<double> own;
  const double* masses = a.masses;
  double total = 0;
  const auto weigh = [&] { own.resize(runs), total = kept_masses(a, kept, top, own.data()), masses = own.data(); };
  if (fewer) weigh();
  else
    for (i64 r = 0; r < runs; r++) total += masses[r];
  if (a.p < 1) {
    if (!nucleus(a, top, total, kept)) return -1;
    weigh();
  }
  if (a.near > -INFINITY && (float)(top + a.near) > kept.least) kept = {(float)(top + a.near)}, weigh();
  double before = 0;
  i64 run = 0;
  while (run < runs - 1 && before + masses[run] < u * total) before += masses[run++];
  Draw part = a;  // the run alone, with the ties that earlier runs have left
  for (i64 r = 0; r < run && kept.ties < INT64_MAX; r++)
    for (i64 i = r * RUN; i < r * RUN + RUN && a.largest[r] >= kept.least; i++) kept.ties -= a.y[i] == kept.least && kept.ties > 0;
  part.y += run * RUN, part.largest += run, part.n = std::min(RUN, a.n - run * RUN);
  i64 at = -1;
  bool over = false;
  each_kept(part, kept, [&](i64 i, unsigned bits, V v) {
    double each[LANES];
    exponents(v, top, each);
    for (; bits && !over; bits &= bits - 1) {
      const double sum = before + each[__builtin_ctz(bits)];
      if ((over = sum >= u * total) && sure(before, u * total, sum, a.margin * total)) at = run * RUN + i + __builtin_ctz(bits);
      before = sum;
    }
  });
  return at;
}
static i64 draw_pieces(const Draw&) { return 1; }
static void draw(const Draw& a, Work& work) {
  if (work.next() >= 0) *a.to = drawn(a);
}
