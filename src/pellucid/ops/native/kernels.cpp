// The kernels of a step; `run`, which runs a list of calls on all threads, and `burst`, which runs one several times.
//
// Compiled for each instruction set of make.py. OpenMP's runtime is not linked: its one symbol is found in the runtime that torch
// has already loaded, so that a process has one pool of threads. An op's number is its index in KERNELS times two, plus one for bf16.
// WebAssembly has the kernels of a decode step: a page draws by its own script.
#include "attend_many.h"
#include "attend_tiles.h"
#include "block_experts.h"
#include "experts.h"
#include "latent.h"
#include "scan.h"
#include "xielu.h"
#if !defined(__wasm__)
#include "block_many.h"
#include "burst.h"
#include "many.h"
#include "neurons_many.h"
#include "sample.h"
#endif

// Every kernel by its name in Python, and its functions: KERNEL(name, functions for float, functions for bf16). ONE has no dtype, BOTH is
// a template over it, OF a template under another name, WIDE writes float, BITS is for weights in blocks, HELD for keys and values in int8. Each f has an f_pieces.
#define ONE(name) KERNEL(name, (name##_pieces, name), (name##_pieces, name))
#define BOTH(name) OF(name, name)
#define OF(name, f) KERNEL(name, (f##_pieces<float>, f<float>), (f##_pieces<u16>, f<u16>))
#define WIDE(name, f) KERNEL(name, (f##_pieces<float>, f<float>), (f##_pieces<u16, float>, f<u16, float>))
#define HELD(name, f) KERNEL(name, (f##_pieces<float, i8>, f<float, i8>), (f##_pieces<u16, i8>, f<u16, i8>))
#define BITS(name, f, bits) KERNEL(name, (f##_pieces<bits, float>, f<bits, float>), (f##_pieces<bits, u16>, f<bits, u16>))
#define OF_A_STEP \
  BOTH(linear) BOTH(embedding) BOTH(norm) BOTH(add) BOTH(gate) BOTH(angles) BOTH(rotate) OF(store, store_rows) BOTH(attend) BOTH(argmax) ONE(stream) \
  BOTH(times) BOTH(xielu) BOTH(convolve) BOTH(softplus) BOTH(decay) BOTH(scan) WIDE(linear_wide, linear) ONE(softmax) ONE(correct) ONE(best) ONE(mix) ONE(shares) ONE(sort) BOTH(experts) BOTH(weigh) BOTH(combine) \
  BOTH(latent) BOTH(cross_attend) BOTH(waves) ONE(bend) BITS(linear_int8, block_linear, 8) BITS(linear_int4, block_linear, 4) \
  BITS(embedding_int8, block_embedding, 8) BITS(embedding_int4, block_embedding, 4) BITS(experts_int8, block_experts, 8) BITS(experts_int4, block_experts, 4)
#if defined(__wasm__)
#define KERNELS OF_A_STEP
#else
#if defined(__AMX_BF16__)
#define OF_TILES ONE(attend_tiles) ONE(neurons_many) ONE(pack_tiles) BITS(many_int8, block_many, 8) BITS(many_int4, block_many, 4)
#else
#define OF_TILES
#endif
#define KERNELS \
  OF_A_STEP OF_TILES BOTH(pack) BOTH(many) WIDE(many_wide, many) ONE(cool) ONE(indices_between) BOTH(largest_allowed) BOTH(runs) ONE(draw) \
  BOTH(store_int8) BOTH(held_int8) HELD(attend_int8, attend)
#endif

#define UNWRAP(...) __VA_ARGS__
#define KERNEL(name, plain, half) op<UNWRAP plain>(), op<UNWRAP half>(),
static const Op ops[] = {KERNELS};
#undef KERNEL
#define KERNEL(name, plain, half) #name,
static const char* const names[] = {KERNELS};

// Describe the kernels, a line each, and at the end a burst's words: name, letters of the fields, names of the fields.
static std::string described() {
  std::string lines;
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) lines += std::string(names[i]) + " " + ops[2 * i].letters + " " + ops[2 * i].field_names + "\n";
#if !defined(__wasm__)
  lines += "burst " + letters(Burst{}.fields()) + " " + Burst::field_names + "\n";
#endif
  return lines;
}

#define EXPORT __attribute__((visibility("default")))
extern "C" {
#if defined(__wasm__)
EXPORT void* room(i64 bytes) { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }  // for a page's script, which frees nothing
#else
EXPORT const char* digest() { return DIGEST; }
#endif
EXPORT const char* kernels() {
  static const std::string lines = described();
  return lines.c_str();
}
// Return the number of words that `pack` writes for `rows` rows of k, in float or, if half, bf16.
EXPORT i64 packed(i64 rows, i64 k, i64 half) { return half ? packed_words<u16>(rows, k) : packed_words<float>(rows, k); }
EXPORT void run(const i64* words, i64 count, i64 threads) { run_list(words, count, (int)threads, ops); }
#if !defined(__wasm__)
EXPORT i64 burst(const i64* words, i64 count, i64 threads, const i64* b) { return run_burst(words, count, (int)threads, ops, *(const Burst*)(b + 3)); }
#endif
}
