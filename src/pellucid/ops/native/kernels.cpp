// The kernels of a step, and `run`, which walks a list of calls with all threads.
//
// Compiled for each instruction set of make.py. OpenMP's runtime is not linked: its one symbol is found in the runtime that torch
// has already loaded, so that a process has one pool of threads. An op's number is its place in `names` times two, plus one for bf16.
#include "attend.h"
#include "block_experts.h"
#include "latent.h"
#include "many.h"
#include "sample.h"

#define ONE(name) {name##_pieces, name}, {name##_pieces, name}
#define BLOCKED(name, bits) {name##_pieces<bits, float>, name<bits, float>}, {name##_pieces<bits, u16>, name<bits, u16>}
#define BOTH(name) {name##_pieces<float>, name<float>}, {name##_pieces<u16>, name<u16>}
static const Op ops[] = {
    BOTH(linear), BOTH(embedding), BOTH(norm), BOTH(add), BOTH(gate), BOTH(angles), BOTH(rotate),
    {store_pieces<float>, store_rows<float>}, {store_pieces<u16>, store_rows<u16>},
    BOTH(attend), BOTH(argmax),
    ONE(stream),
    BOTH(times),
    {linear_pieces<float>, linear<float>}, {linear_pieces<u16, float>, linear<u16, float>},
    ONE(softmax), ONE(correct), ONE(best), ONE(shares), ONE(sort), BOTH(experts), BOTH(weigh), BOTH(combine), BOTH(latent), BOTH(cross_attend), BOTH(waves), ONE(bend),
    BLOCKED(block_linear, 8), BLOCKED(block_linear, 4), BLOCKED(block_embedding, 8), BLOCKED(block_embedding, 4),
    BOTH(pack), {many_pieces<float>, many<float>}, {many_pieces<u16>, many<u16>},
    {many_pieces<float>, many<float>}, {many_pieces<u16, float>, many<u16, float>},
    ONE(cool), ONE(indices_between), ONE(masses),
    BLOCKED(block_experts, 8), BLOCKED(block_experts, 4),
};

extern "C" {
__attribute__((visibility("default"))) const char* digest() { return DIGEST; }
__attribute__((visibility("default"))) const char* names() {
  return "linear embedding norm add gate angles rotate store attend argmax stream times linear_wide "
  "softmax correct best shares sort experts weigh combine latent cross_attend waves bend "
  "linear_int8 linear_int4 embedding_int8 embedding_int4 pack many many_wide cool indices_between masses experts_int8 experts_int4";
}
// Floats that `pack` fills for so many rows of k.
__attribute__((visibility("default"))) i64 packed(i64 rows, i64 k) { return parts(rows, HIGH) * woven(k, HIGH); }
__attribute__((visibility("default"))) void run(const i64* words, i64 count, i64 threads) { run_list(words, count, (int)threads, ops); }
}
