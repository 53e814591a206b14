// The small ops of a step: embedding, norm, add, gate, times, angles, rotate, argmax.
//
// The one idea: each is cut by rows, or by runs of numbers, large enough to be worth taking a piece. Intermediate values are rounded to bf16
// where training rounds them; a comment says where.
#pragma once
#include "walk.h"

// Numbers of a piece at least, and pieces at most: threads that take them wait for one another. The gate of 512 rows of
// 4,864 numbers on two cores takes 1.1 ms in pieces of 1,024, and 0.85 in 64.
constexpr i64 GRAIN = 1024, PIECES = 64;
static inline i64 rows_a_piece(i64 rows, i64 width) {
  const i64 least = width >= GRAIN ? 1 : GRAIN / (width < 1 ? 1 : width), share = parts(rows, PIECES);
  return share > least ? share : least;
}
static inline i64 numbers_a_piece(i64 n) { return n > GRAIN * PIECES ? parts(parts(n, PIECES), PAIR) * PAIR : GRAIN; }
static inline i64 runs(i64 n) { return parts(n, numbers_a_piece(n)); }

// Call f(row) for the rows of one piece after another.
template <class F>
static inline void each_row(Work& work, i64 rows, i64 width, F f) {
  const i64 size = rows_a_piece(rows, width);
  for (i64 p; (p = work.next()) >= 0;)
    for (i64 r = p * size; r < rows && r < (p + 1) * size; r++) f(r);
}
// Call f(i, lanes) for the numbers of one piece after another.
template <class F>
static inline void each_run(Work& work, i64 n, F f) {
  const i64 size = numbers_a_piece(n);
  for (i64 p; (p = work.next()) >= 0;) steps(p * size, (p + 1) * size < n ? (p + 1) * size : n, f);
}

// ---- embedding: the rows of a table at ids. An id outside the table gives NaN, never other memory.
template <class T>
struct Embedding {
  const T* table;
  const i64* ids;
  T* y;
  i64 rows, width, count;
  FIELDS(table, ids, y, rows, width, count)
};
template <class T>
static i64 embedding_pieces(const Embedding<T>& a) {
  return parts(a.rows, rows_a_piece(a.rows, a.width));
}
template <class T>
static void embedding(const Embedding<T>& a, Work& work) {
  each_row(work, a.rows, a.width, [&](i64 r) {
    const i64 id = a.ids[r];
    if (id >= 0 && id < a.count) std::memcpy(a.y + r * a.width, a.table + id * a.width, a.width * sizeof(T));
    else
      for (i64 i = 0; i < a.width; i++) put(a.y + r * a.width + i, NAN);
  });
}

// ---- norm: LayerNorm if centred (arXiv 1607.06450), otherwise RMSNorm (arXiv 1910.07467), times weight, 1 + weight if offset, or nothing.
// Row r has the weight at r % weights, of as many as there are.
template <class T>
struct Norm {
  const T* x;
  T* y;
  const T *weight, *bias;
  i64 rows, width, step, weights;  // step: from one row of x to the next
  double eps;
  i64 centred, offset;
  FIELDS(x, y, weight, bias, rows, width, step, weights, eps, centred, offset)
};
template <class T>
static i64 norm_pieces(const Norm<T>& a) {
  return parts(a.rows, rows_a_piece(a.rows, a.width));
}
template <class T>
static void norm(const Norm<T>& a, Work& work) {
  each_row(work, a.rows, a.width, [&](i64 r) {
    const T* x = a.x + r * a.step;
    T* y = a.y + r * a.width;
    const T* weight = a.weight ? a.weight + r % a.weights * a.width : nullptr;
    V sum = set(0.f), square = set(0.f);
    float mean = 0;
    if (a.centred) {
      steps(0, a.width, [&](i64 i, i64 n) { sum = sum + load(x + i, n); });
      mean = total(sum) / (float)a.width;
    }
    const i64 full = a.width / LANES * LANES;
    steps(0, full, [&](i64 i, i64) {
      V d = load(x + i) - set(mean);
      square = fma(d, d, square);
    });
    float squares = total(square);
    for (i64 i = full; i < a.width; i++) squares += (get(x + i) - mean) * (get(x + i) - mean);
    const V scale = set(1.f / std::sqrt(squares / (float)a.width + (float)a.eps));
    steps(0, a.width, [&](i64 i, i64 n) {
      V v = (load(x + i, n) - set(mean)) * scale;
      if (!a.centred && !a.offset) v = as(v, x);  // RMSNorm rounds before its weight; with an offset, and LayerNorm, only at the end
      if (weight) v = v * (a.offset ? set(1.f) + load(weight + i, n) : load(weight + i, n));
      store(y + i, a.bias ? v + load(a.bias + i, n) : v, n);
    });
  });
}

// ---- add
template <class T>
struct Add {
  const T *x, *y;
  T* z;
  i64 n;
  FIELDS(x, y, z, n)
};
template <class T>
static i64 add_pieces(const Add<T>& a) {
  return runs(a.n);
}
template <class T>
static void add(const Add<T>& a, Work& work) {
  each_run(work, a.n, [&](i64 i, i64 n) { store(a.z + i, load(a.x + i, n) + load(a.y + i, n), n); });
}

// ---- gate: act(g) * up, or act(g) if up is null. amount: the parameter of the acts that have one
template <class T>
struct Gate {
  const T *g, *up;
  T* y;
  i64 n, act;
  double amount;
  FIELDS(g, up, y, n, act, amount)
};
static inline V gelu_tanh(V x) {  // x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), the same as the form with tanh
  return x / (set(1.f) + exponent(x * set(-1.5957691216f) * fma(x * x, set(0.044715f), set(1.f))));
}
static inline V gelu(V x) {
  V z = x * set(0.70710678f), far = erfc(where(z, set(0.f), set(0.f) - z, z));
  return x * set(0.5f) * where(x, set(0.f), far, set(2.f) - far);
}
static inline V silu(V x) { return x / (set(1.f) + exponent(set(0.f) - x)); }
static inline V relu(V x) { return max(set(0.f), x); }
static inline V clamped(V x) {  // gpt-oss: x * sigmoid(1.702 x), x at most 7
  x = min(set(7.f), x);
  return x / (set(1.f) + exponent(x * set(-1.702f)));
}
// Compute numbers [from, to).
template <class T>
static void gate_run(const Gate<T>& a, i64 from, i64 to) {
  const V amount = set((float)a.amount);
  const auto by = [&](auto act) {
    steps(from, to, [&](i64 i, i64 n) {
      V v = act(load(a.g + i, n));
      store(a.y + i, a.up ? v * load(a.up + i, n) : v, n);
    });
  };
  if (a.act == 0) by([](V x) { return gelu_tanh(x); });
  if (a.act == 1) by([](V x) { return gelu(x); });
  if (a.act == 2) by([](V x) { return silu(x); });
  if (a.act == 3) by([](V x) { return relu(x); });
  if (a.act == 5) by([&](V x) { return x * amount; });
  if (a.act == 8) by([](V x) { return x; });
  if (a.act == 7) by([](V x) { return set(1.f) / (set(1.f) + exponent(set(0.f) - x)); });
  if (a.act == 6) by([&](V x) { return amount * tangent(x / amount); });
  if (a.act == 9) by([&](V x) { return max(set(0.f) - amount, min(amount, x)); });
  if (a.act == 4)  // clamped's up lies in -7 ... 7 and gains 1
    steps(from, to, [&](i64 i, i64 n) {
      store(a.y + i, clamped(load(a.g + i, n)) * (max(set(-7.f), min(set(7.f), load(a.up + i, n))) + set(1.f)), n);
    });
}
template <class T>
static i64 gate_pieces(const Gate<T>& a) {
  return runs(a.n);
}
template <class T>
static void gate(const Gate<T>& a, Work& work) {
  const i64 size = numbers_a_piece(a.n);
  for (i64 p; (p = work.next()) >= 0;) gate_run(a, p * size, (p + 1) * size < a.n ? (p + 1) * size : a.n);
}

// ---- convolve: each channel's last `taps` rows in pages, each times its own number of weight [taps width], plus bias (arXiv 2511.23404)
template <class T>
struct Convolve {
  const T *pool, *weight, *bias;
  const i64 *table, *positions;
  T* y;
  i64 rows, width, taps, size, pages;  // pages: from one row's table to the next row's, 0 if all share one
  FIELDS(pool, weight, bias, table, positions, y, rows, width, taps, size, pages)
};
template <class T>
static i64 convolve_pieces(const Convolve<T>& a) {
  return parts(a.rows, rows_a_piece(a.rows, a.width));
}
template <class T>
static void convolve(const Convolve<T>& a, Work& work) {
  each_row(work, a.rows, a.width, [&](i64 r) {
    const i64 *table = a.table + r * a.pages, first = a.positions[r] - a.taps + 1;
    steps(0, a.width, [&](i64 i, i64 n) {
      V sum = a.bias ? load(a.bias + i, n) : set(0.f);
      for (i64 j = first < 0 ? -first : 0; j < a.taps; j++) {
        const i64 at = first + j, row = table[at / a.size] * a.size + at % a.size;
        sum = sum + load(a.pool + row * a.width + i, n) * load(a.weight + j * a.width + i, n);
      }
      store(a.y + r * a.width + i, sum, n);
    });
  });
}

// ---- times: multiply each row by a factor: the sigmoid of gate [rows], or 1 + amount * ln(1 + (position + first) / floor)
template <class T>
struct Times {
  const T *x, *gate;
  const i64* positions;
  T* y;
  i64 rows, width, floor, first;
  double amount;
  FIELDS(x, gate, positions, y, rows, width, floor, first, amount)
};
template <class T>
static i64 times_pieces(const Times<T>& a) {
  return parts(a.rows, rows_a_piece(a.rows, a.width));
}
template <class T>
static void times(const Times<T>& a, Work& work) {
  each_row(work, a.rows, a.width, [&](i64 r) {
    float factor;
    if (a.gate) {
      T share;
      put(&share, 1.f / (1.f + std::exp(-get(a.gate + r))));
      factor = get(&share);
    } else {
      factor = (float)(1 + a.amount * std::log1p((double)((a.positions[r] + a.first) / a.floor)));
    }
    steps(0, a.width, [&](i64 i, i64 n) { store(a.y + r * a.width + i, load(a.x + r * a.width + i, n) * set(factor), n); });
  });
}

// ---- angles and rotate: rotary positions, arXiv 2104.09864. The product of position and frequency is taken in double.
template <class T>
struct Angles {
  const i64* positions;
  const void* frequencies;
  T *cos, *sin;
  i64 rows, half, single, stride;  // stride: from one row's frequencies to the next row's, 0 if all share them
  double amount;
  FIELDS(positions, frequencies, cos, sin, rows, half, single, stride, amount)
};
template <class T>
static i64 angles_pieces(const Angles<T>& a) {
  return a.rows;
}
template <class T>
static void angles(const Angles<T>& a, Work& work) {
  for (i64 r; (r = work.next()) >= 0;)
    for (i64 j = 0; j < a.half; j++) {
      double angle = (double)a.positions[r] * (a.single ? ((const float*)a.frequencies)[r * a.stride + j] : ((const double*)a.frequencies)[r * a.stride + j]);
      put(a.cos + r * a.half + j, (float)(std::cos(angle) * a.amount));
      put(a.sin + r * a.half + j, (float)(std::sin(angle) * a.amount));
    }
}

// ---- bend: the frequencies of each row by its text's length: the first of two lists up to `original`, then the second; or, without lists,
// those of a base that grows with the length
struct Bend {
  const i64* totals;
  const double* lists;
  double* y;
  i64 rows, half, original;
  double theta, factor;
  FIELDS(totals, lists, y, rows, half, original, theta, factor)
};
static i64 bend_pieces(const Bend& a) { return a.rows; }
static void bend(const Bend& a, Work& work) {
  const double width = 2.0 * (double)a.half;
  for (i64 r; (r = work.next()) >= 0;) {
    const i64 total = a.totals[r];
    const double longer = a.factor * (double)(total > a.original ? total : a.original) / (double)a.original - (a.factor - 1);
    const double base = a.theta * std::pow(longer, width / (width - 2));
    for (i64 j = 0; j < a.half; j++)
      a.y[r * a.half + j] = a.lists ? a.lists[(total > a.original ? a.half : 0) + j] : 1 / std::pow(base, 2.0 * (double)j / width);
  }
}

// ---- waves: the sines of positions + skip over 10000^(i / over), then their cosines, rounded to float32
template <class T>
struct Waves {
  const i64* positions;
  T* y;
  i64 rows, width, skip;
  double over;
  FIELDS(positions, y, rows, width, skip, over)
};
template <class T>
static i64 waves_pieces(const Waves<T>& a) {
  return a.rows;
}
template <class T>
static void waves(const Waves<T>& a, Work& work) {
  const i64 half = (a.width + 1) / 2;
  for (i64 r; (r = work.next()) >= 0;)
    for (i64 j = 0; j < a.width; j++) {
      const double angle = (double)(a.positions[r] + a.skip) / std::pow(10000.0, (double)(j % half) / a.over);
      put(a.y + r * a.width + j, (float)(j < half ? std::sin(angle) : std::cos(angle)));
    }
}

template <class T>
struct Rotate {
  const T *x, *cos, *sin;
  T* y;
  i64 rows, heads, rotary, width, row_step, head_step, interleaved;  // the first `rotary` of width channels
  FIELDS(x, cos, sin, y, rows, heads, rotary, width, row_step, head_step, interleaved)
};
template <class T>
static i64 rotate_pieces(const Rotate<T>& a) {
  return parts(a.rows * a.heads, rows_a_piece(a.rows * a.heads, a.width));
}
template <class T>
static void rotate(const Rotate<T>& a, Work& work) {
  const i64 half = a.rotary / 2;
  each_row(work, a.rows * a.heads, a.width, [&](i64 j) {
    const i64 r = j / a.heads, h = j % a.heads;
    const T *x = a.x + r * a.row_step + h * a.head_step, *cos = a.cos + r * half, *sin = a.sin + r * half;
    T* y = a.y + j * a.width;
    std::memcpy(y + a.rotary, x + a.rotary, (a.width - a.rotary) * sizeof(T));
    if (a.interleaved) {
      for (i64 i = 0; i < half; i++) {
        const float p = get(x + 2 * i), q = get(x + 2 * i + 1), c = get(cos + i), s = get(sin + i);
        put(y + 2 * i, p * c - q * s);
        put(y + 2 * i + 1, q * c + p * s);
      }
      return;
    }
    steps(0, half, [&](i64 i, i64 n) {
      const V p = load(x + i, n), q = load(x + half + i, n), c = load(cos + i, n), s = load(sin + i, n);
      store(y + i, p * c - q * s, n);
      store(y + half + i, q * c + p * s, n);
    });
  });
}

// ---- argmax: the lowest index of each row's largest value. A NaN is larger than all
template <class T>
struct Argmax {
  const T* x;
  i64* to;
  i64 rows, width;
  FIELDS(x, to, rows, width)
};
template <class T>
static i64 argmax_pieces(const Argmax<T>& a) {
  return a.rows;
}
template <class T>
static void argmax(const Argmax<T>& a, Work& work) {
  for (i64 r; (r = work.next()) >= 0;) {
    const T* x = a.x + r * a.width;
    V bad = set(0.f);
    float high = -INFINITY;
    i64 at = 0;  // the start of the first run with the largest
    for (i64 from = 0; from < a.width; from += GRAIN) {
      const i64 to = from + GRAIN < a.width ? from + GRAIN : a.width, full = from + (to - from) / LANES * LANES;
      V top = set(-INFINITY);
      for (i64 i = from; i < full; i += LANES) {
        V v = load(x + i);
        top = max(v, top), bad = bad + v * set(0.f);  // infinity * 0 is NaN too: only a reason to look closer
      }
      float peak = largest(top);
      for (i64 i = full; i < to; i++) peak = get(x + i) > peak ? get(x + i) : peak, bad = bad + set(get(x + i) * 0.f);
      if (peak > high) high = peak, at = from;
    }
    bool nan = any_nan(bad);
    if (nan) {
      i64 i = 0;
      while (i < a.width && get(x + i) == get(x + i)) i++;
      if ((nan = i < a.width)) at = i;
    }
    if (!nan)
      while (at < a.width - 1 && get(x + at) != high) at++;
    a.to[r] = at;
  }
}

// ---- stream: read memory, to measure its bandwidth. streams: at how many places of a piece at once, a power of two up to 8; a processor reads
// ahead at each
struct Stream {
  const char* block;
  i64 bytes, streams;
  float* to;
  FIELDS(block, bytes, streams, to)
};
constexpr i64 BLOCK = 256 << 10;
static i64 stream_pieces(const Stream& a) { return a.bytes / BLOCK; }
static void stream(const Stream& a, Work& work) {
  constexpr i64 AT_ONCE = 4 * (i64)sizeof(I);
  I sum[4] = {ints(0), ints(0), ints(0), ints(0)};
  const i64 each = BLOCK / a.streams;
  for (i64 p; (p = work.next()) >= 0;)
    for (i64 i = 0; i < each; i += AT_ONCE)
      for (const char* from = a.block + p * BLOCK + i; from < a.block + (p + 1) * BLOCK; from += each)
        for (int j = 0; j < 4; j++) sum[j] = either(sum[j], load_bits(from + j * (i64)sizeof(I)));
  float out[LANES];
  store(out, as_float(either(either(sum[0], sum[1]), either(sum[2], sum[3]))));
  if (out[0] == 1.2345f) *a.to = out[1];  // else the compiler would remove the loads
}
