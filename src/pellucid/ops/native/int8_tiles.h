// Products of weights in blocks by the processor's tiles of bytes (AMX): sixteen rows of w, one block of each, times the same block of up to
// sixteen rows of rounded x, which `weave` lays out as words of four codes.
//
// The one idea: a tile's integers are exact, so only the order in which blocks are added in float sets the bits, and that is `dot`'s of
// blocks.h: its lanes are taken one after another here, as leaves of the tree that adds its lanes at the end. So `dot` may take any row.
#pragma once
#include "linear.h"

#if defined(__AMX_INT8__)
constexpr bool BYTE_TILES = true;
constexpr i64 WOVEN = HEIGHT * 32 + HEIGHT * 4;  // bytes of a block of woven x: codes, then scales

struct alignas(64) ByteTileShapes {  // 0: cells.  1: w, 32 bytes of each row.  2: x, eight words of each row
  uint8_t palette = 1, zeros[15] = {};
  uint16_t bytes[16] = {64, 32, 64};
  uint8_t rows[16] = {16, 16, 8};
};
static constexpr ByteTileShapes BYTE_SHAPES;
struct ByteTiles {
  ByteTiles() { _tile_loadconfig(&BYTE_SHAPES); }
  ~ByteTiles() { _tile_release(); }
};

// Where tiles read: woven x, the scales of sixteen rows of w, and these rows, unpacked or padded.
template <class X>
struct ByteRoom {
  i64 groups, woven_floats, pitch, width;  // pitch: floats of a row's scales.  width: bytes of a row of the panel. Neither is a multiple of 4 KiB
  i8* woven = nullptr;
  float* own = nullptr;
  i8* panel = nullptr;
  ByteRoom(i64 rows, i64 blocks, i64 registers)
      : groups(parts(rows, HEIGHT)), woven_floats(groups * blocks * WOVEN / 4), pitch(parts(blocks, LANES) * LANES + LANES), width(registers * X::WEIGHTS + 64) {}
  i64 floats() const { return woven_floats + HEIGHT * pitch + HEIGHT * width / 4; }
  void lie_at(void* room) { woven = (i8*)room, own = (float*)room + woven_floats, panel = (i8*)(own + HEIGHT * pitch); }
};

// Weave `rows` rows of x, a group of sixteen after another. Rows that are missing are zeros.
template <class X>
static void weave_blocks(const X& x, i64 rows, i8* to) {
  i64 at[8];
  for (i64 j = 0; j < 8; j++) at[j] = j * HEIGHT;
  for (i64 row = 0; row < rows; row += HEIGHT)
    for (i64 b = 0; b < x.blocks; b++, to += WOVEN) {
      float* scales = (float*)(to + HEIGHT * 32);
      for (i64 h = 0; h < HEIGHT; h += 8) {
        Eight words[8];
        for (i64 r = 0; r < 8; r++) {
          const bool some = row + h + r < rows;
          words[r] = some ? x.block(row + h + r, b) : set8(0.f);
          scales[h + r] = some ? x.scale(row + h + r, b) : 0.f;
        }
        transpose(words, (float*)to + h, at);
      }
    }
}

// Lay `count` rows of w, `bytes` each, in the panel as bytes with a sign. What is no number of w meets zeros of x.
template <class X>
static void fill_panel(const u8* w, i64 count, i64 bytes, const ByteRoom<X>& room) {
  for (i64 j = 0; j < count; j++)
    for (i64 i = 0; i < bytes; i += 64) {
      I some = no_bits();
      if (bytes - i >= 64) some = load_bits(w + j * bytes + i);
      else std::memcpy(&some, w + j * bytes + i, bytes - i);
      i8* to = room.panel + j * room.width + i * X::WEIGHTS / 64;
      if constexpr (X::WEIGHTS == 64) store_bits(to, some);
      else {  // the even numbers of a block, then the odd ones
        const I low = _mm512_sub_epi8(both(some, bytes8(15)), bytes8(8)), high = _mm512_sub_epi8(both(right(some, 4), bytes8(15)), bytes8(8));
        store_bits(to, _mm512_permutex2var_epi64(low, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), high));
        store_bits(to + 64, _mm512_permutex2var_epi64(low, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), high));
      }
    }
}

// Set cells [row of w][row of x] to the products of sixteen rows of w, `stride` apart, and a woven group of x. A block's tile is multiplied
// while the one before it is added, since a product takes longer than its turn.
template <class X>
static inline void byte_cells(const i8* w, i64 stride, const ByteRoom<X>& room, const i8* x, i64 blocks, float (*cells)[HEIGHT], Pace& pace) {
  alignas(64) int sums[2][HEIGHT][HEIGHT];
  V left[5][HEIGHT];  // at each level of the tree the sums that wait
  struct {            // the block whose tile is multiplied
    i64 block = 0;
    int leaf = 0, turn = 0;
  } ahead;
  const auto begin = [](int leaf) { return X::place((leaf & 1) << 3 | (leaf & 2) << 1 | (leaf & 4) >> 1 | leaf >> 3); };  // its lane is its bits reversed
  const auto multiply = [&]() __attribute__((always_inline)) {
    if (ahead.leaf == LANES) return;
    pace.go();
    _tile_zero(0);
    _tile_loadd(1, w + ahead.block * 32, stride);
    _tile_loadd(2, x + ahead.block * WOVEN, 64);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums[ahead.turn], 64);
    ahead.turn ^= 1;
    for (ahead.block += LANES; ahead.block >= blocks && ++ahead.leaf < LANES;) ahead.block = begin(ahead.leaf);
  };
  multiply();
  for (int leaf = 0, turn = 0; leaf < LANES; leaf++) {
    V sum[HEIGHT];
#pragma GCC unroll 16
    for (int j = 0; j < HEIGHT; j++) sum[j] = set(0.f);
    for (i64 b = begin(leaf); b < blocks; b += LANES, turn ^= 1) {
      multiply();
      const V scale = load((const float*)(x + b * WOVEN + HEIGHT * 32));
#pragma GCC unroll 16
      for (int j = 0; j < HEIGHT; j++) sum[j] = fma(floats(load_bits(sums[turn][j])), set(room.own[j * room.pitch + b]) * scale, sum[j]);
    }
    int level = 0;
    for (; leaf >> level & 1; level++)
#pragma GCC unroll 16
      for (int j = 0; j < HEIGHT; j++) sum[j] = left[level][j] + sum[j];
#pragma GCC unroll 16
    for (int j = 0; j < HEIGHT; j++) left[level][j] = sum[j];
  }
  for (int j = 0; j < HEIGHT; j++) store(cells[j], left[4][j]);
}

// Compute columns [from, to) of all rows, woven in `room`.
template <int BITS, class L, class X>
static void byte_tiles(const L& a, const X& x, const ByteRoom<X>& room, i64 from, i64 to) {
  const i64 bytes = (a.k * BITS + 7) / 8;
  alignas(64) float cells[1][HEIGHT][HEIGHT];
  const ByteTiles tiles;
  for (i64 j = from; j < to; j += HEIGHT) {
    const i64 count = to - j < HEIGHT ? to - j : HEIGHT;
    for (i64 c = 0; c < count; c++)
      for (i64 b = 0; b < x.blocks; b += LANES) store(room.own + c * room.pitch + b, halves(a.scales + (j + c) * x.blocks + b, x.blocks - b));
    const i64 past = (a.n - j - count) * bytes;  // bytes of w that follow: the last block of the last row may reach into them
    const bool as_it_lies = BITS == 8 && count == HEIGHT && past >= x.blocks * 32 - bytes;
    if (!as_it_lies) fill_panel(a.w + j * bytes, count, bytes, room);
    asm volatile("" ::: "memory");  // GCC does not know that a tile's load reads memory
    Pace pace{(const char*)(a.w + (j + HEIGHT) * bytes), HEIGHT * bytes / (room.groups * x.blocks)};
    for (i64 g = 0; g < room.groups; g++) {
      const i8* w = as_it_lies ? (const i8*)a.w + j * bytes : room.panel;
      byte_cells(w, as_it_lies ? bytes : room.width, room, room.woven + g * x.blocks * WOVEN, x.blocks, cells[0], pace);
      write(a, cells, j, count, g * HEIGHT);
    }
  }
}
#else
constexpr bool BYTE_TILES = false;
#endif
