// Products of weights in blocks by the processor's tiles of bytes (AMX): sixteen rows of w, one block of each, times the same block of up to
// sixteen rows of rounded x, which `weave` lays out as words of four codes.
//
// The one idea: a tile's integers are exact, so only the order in which blocks are added in float sets the bits, and that is `dot`'s of
// blocks.h: its lanes are taken one after another here, as leaves of the tree that adds its lanes at the end. So `dot` may take any row.
#pragma once
#include "linear.h"

#if defined(__AMX_INT8__)
constexpr bool BYTE_TILES = true;
constexpr i64 CODES = HEIGHT * 32, WOVEN = CODES + HEIGHT * 4;  // bytes of a block of sixteen rows: of w, its codes; of x, codes and scales

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

// Where tiles read, blocks in the order in which they are multiplied: woven x, and a panel of sixteen rows of w with their scales, row by row.
struct ByteRoom {
  i64 groups, blocks, pitch;  // pitch: floats of a row's scales, no multiple of 4 KiB
  i8 *woven = nullptr, *panel = nullptr;
  float* own = nullptr;
  ByteRoom(i64 rows, i64 blocks) : groups(parts(rows, HEIGHT)), blocks(blocks), pitch(parts(blocks, LANES) * LANES + LANES) {}
  i64 floats() const { return blocks * (groups * WOVEN + CODES) / 4 + HEIGHT * pitch; }
  void lie_at(void* room) { woven = (i8*)room, panel = woven + groups * blocks * WOVEN, own = (float*)(panel + blocks * CODES); }
};

// Return the first block of a leaf of the tree; the next ones are LANES apart. Its lane is the leaf with its bits reversed.
template <class X>
static inline i64 first_block(int leaf) { return X::place((leaf & 1) << 3 | (leaf & 2) << 1 | (leaf & 4) >> 1 | leaf >> 3); }

// Weave `rows` rows of x, a group of sixteen after another, blocks in the order in which they are multiplied. Rows that are missing are zeros.
template <class X>
static void weave_blocks(const X& x, i64 rows, i8* to) {
  i64 at[8];
  for (i64 j = 0; j < 8; j++) at[j] = j * HEIGHT;
  for (i64 row = 0; row < rows; row += HEIGHT)
    for (int leaf = 0; leaf < LANES; leaf++)
      for (i64 b = first_block<X>(leaf); b < x.blocks; b += LANES, to += WOVEN) {
        float* scales = (float*)(to + CODES);
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

// Lay `count` rows of w, `bytes` each, in the panel, as bytes with a sign, of int4 the even numbers first. What is no number of w meets zeros of x.
template <class X>
static void fill_panel(const u8* w, i64 count, i64 bytes, const ByteRoom& room) {
  constexpr i64 EACH = X::WEIGHTS == 64 ? 32 : 16;  // bytes of a block
  i8* to = room.panel;
  for (int leaf = 0; leaf < LANES; leaf++)
    for (i64 b = first_block<X>(leaf); b < room.blocks; b += LANES, to += CODES)
      for (i64 j = 0; j < count; j++) {
        alignas(32) i8 codes[32] = {};
        const u8* from = w + j * bytes + b * EACH;
        if (bytes - b * EACH >= EACH) std::memcpy(codes, from, EACH);
        else std::memcpy(codes, from, bytes - b * EACH);
        __m256i some = _mm256_load_si256((const __m256i*)codes);
        if constexpr (EACH == 16) {
          const __m128i packed = _mm256_castsi256_si128(some), low = _mm_set1_epi8(15);
          some = _mm256_sub_epi8(_mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(packed, 4), low), _mm_and_si128(packed, low)), _mm256_set1_epi8(8));
        }
        _mm256_store_si256((__m256i*)(to + j * 32), some);
      }
}

// A prefetch beside the products, at an even pace: of the next rows of w.
struct Pace {
  const char* at;
  i64 bytes;
  void go() {
    for (i64 i = 0; i < bytes; i += 64) prefetch_l2(at + i);
    at += bytes;
  }
};

// Set cells [row of w][row of x] to the products of the panel and a woven group of x. A block's tile is multiplied while the one before it is
// added, since a product takes longer than its turn.
template <class X>
static inline void byte_cells(const ByteRoom& room, const i8* x, float (*cells)[HEIGHT], Pace& pace) {
  alignas(64) int sums[2][HEIGHT][HEIGHT];
  V left[5][HEIGHT];  // at each level of the tree the sums that wait
  i64 ahead = 0;      // the block that is multiplied next
  const auto multiply = [&]() __attribute__((always_inline)) {
    if (ahead == room.blocks) return;
    pace.go();
    _tile_zero(0);
    _tile_loadd(1, room.panel + ahead * CODES, 32);
    _tile_loadd(2, x + ahead * WOVEN, 64);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums[ahead++ % 2], 64);
    for (i64 i = 0; i < WOVEN; i += 64) prefetch_l1(x + (ahead + 1) * WOVEN + i);
  };
  multiply();
  i64 p = 0;
  for (int leaf = 0; leaf < LANES; leaf++) {
    V sum[HEIGHT];
#pragma GCC unroll 16
    for (int j = 0; j < HEIGHT; j++) sum[j] = set(0.f);
    for (i64 b = first_block<X>(leaf); b < room.blocks; b += LANES, p++) {
      multiply();
      const V scale = load((const float*)(x + p * WOVEN + CODES));
#pragma GCC unroll 16
      for (int j = 0; j < HEIGHT; j++) sum[j] = fma(floats(load_bits(sums[p % 2][j])), set(room.own[j * room.pitch + b]) * scale, sum[j]);
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
static void byte_tiles(const L& a, const X& x, const ByteRoom& room, i64 from, i64 to) {
  const i64 bytes = (a.k * BITS + 7) / 8;
  alignas(64) float cells[HEIGHT][HEIGHT];
  const ByteTiles tiles;
  for (i64 j = from; j < to; j += HEIGHT) {
    const i64 count = to - j < HEIGHT ? to - j : HEIGHT;
    for (i64 c = 0; c < count; c++)
      for (i64 b = 0; b < x.blocks; b += LANES) store(room.own + c * room.pitch + b, halves(a.scales + (j + c) * x.blocks + b, x.blocks - b));
    fill_panel<X>(a.w + j * bytes, count, bytes, room);
    asm volatile("" ::: "memory");  // GCC does not know that a tile's load reads memory
    Pace pace{(const char*)(a.w + (j + HEIGHT) * bytes), HEIGHT * bytes / (room.groups * x.blocks)};
    for (i64 g = 0; g < room.groups; g++) {
      for (i64 r = g * HEIGHT; r < a.rows && r < (g + 1) * HEIGHT; r++) prefetch_to_write(a.y + r * a.n + j);  // written soon, each in a page of its own
      byte_cells<X>(room, room.woven + g * x.blocks * WOVEN, cells, pace);
      write(a, {cells[0]}, j, count, g * HEIGHT);
    }
  }
}
#else
constexpr bool BYTE_TILES = false;
#endif
