// A call is a few 64-bit words; all threads walk a list of calls at once.
//
//     op | number of words that follow | after | pointers and numbers ...
//
// The one idea: a call is cut into pieces that no thread owns. Every thread walks the list and takes pieces while there are any; before a
// call it waits until the first `after` calls of the list are done. So a thread that the system has suspended delays the others only by
// the piece it has begun; running threads take the rest.
#pragma once
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "vectors.h"
#if !defined(_OPENMP) && !defined(__wasm__)
#include "threads.h"
#endif

struct alignas(64) Call {
  const i64* words = nullptr;
  i64 op = 0, after = 0, pieces = 0;
  std::atomic<int> taken{0}, done{0}, asleep{0};
};

struct Work {
  Call& call;
  int mine = 0;  // pieces that this thread has taken
  i64 next() {   // take a piece: its number, or -1 if none is left
    int i = call.taken.load(std::memory_order_relaxed) < call.pieces ? call.taken.fetch_add(1, std::memory_order_relaxed) : (int)call.pieces;
    return i < call.pieces ? (++mine, i) : -1;
  }
  bool idle() const { return call.taken.load(std::memory_order_relaxed) >= call.pieces; }
};

// Return this thread's own buffer, of full cache lines; a large one is in huge pages (a panel of weights at k = 4864: 160 -> 170 GFLOP/s).
static inline float* scratch(i64 floats) {
  static thread_local struct Scratch {
    void* at = nullptr;
    i64 size = 0;
    ~Scratch() { std::free(at); }
  } buffer;
  constexpr i64 PAGE = 2 << 20;
  if (buffer.size < floats * 4) {  // doubled, so that a buffer that grows a little at every step is seldom replaced
    const i64 bytes = floats * 4 > 2 * buffer.size ? floats * 4 : 2 * buffer.size, line = bytes < PAGE / 4 ? 64 : PAGE;
    std::free(buffer.at);
    buffer.size = parts(bytes, line) * line, buffer.at = std::aligned_alloc(line, buffer.size);
#if defined(__linux__)
    if (line == PAGE) madvise(buffer.at, buffer.size, MADV_HUGEPAGE);  // a hint: without huge pages the memory is in small ones
#endif
  }
  return (float*)buffer.at;
}

// A kernel's words are a struct of integers, doubles and pointers, and FIELDS names them in their order. Python, and the page's script, read
// the names and types from here (see kernels.cpp) and pass each word by its name, so that the order is written in the struct alone. A word has
// 8 bytes; WebAssembly's pointers have 4, and are aligned as C++ aligns them.
#define FIELDS(...)                                       \
  static constexpr const char* field_names = #__VA_ARGS__; \
  constexpr auto fields() const { return std::tie(__VA_ARGS__); }

template <class S, size_t... I>
constexpr bool rising(const S& s, std::index_sequence<I...>) {
  const auto t = s.fields();
  return (((const void*)&std::get<I>(t) < (const void*)&std::get<I + 1>(t)) && ...);
}
// True if FIELDS names every field of S, in order. Clang compares no such addresses while it compiles; GCC has compiled the same structs.
template <class S>
constexpr bool in_order() {
#if defined(__clang__)
  return true;
#else
  const S s{};
  constexpr size_t n = std::tuple_size<decltype(s.fields())>::value;
  return sizeof(S) == 8 * n && rising(s, std::make_index_sequence<n - 1>{});
#endif
}
// Return a field's letter: d for a double, q for an integer, p for a pointer.
template <class F>
constexpr char letter() {
  static_assert(std::is_same_v<F, double> || std::is_same_v<F, i64> || std::is_pointer_v<F>, "a field is an i64, a double or a pointer");
  return std::is_same_v<F, double> ? 'd' : std::is_same_v<F, i64> ? 'q' : 'p';
}
template <class... F>
static std::string letters(const std::tuple<const F&...>&) {
  return {letter<F>()...};
}

struct Op {
  i64 (*pieces)(const i64*);  // the number of pieces of a call
  void (*work)(const i64*, Work&);
  const char* field_names;
  std::string letters;
};
template <class S>
S words_of(void (*)(const S&, Work&));
// Make a kernel's entry in the table from its two functions of one struct.
template <auto PIECES, auto WORK>
static Op op() {
  using S = decltype(words_of(WORK));
  static_assert(in_order<S>(), "FIELDS must name every field of the struct, in its order");
  return {[](const i64* words) { return PIECES(*(const S*)words); }, [](const i64* words, Work& work) { WORK(*(const S*)words, work); },
          S::field_names, letters(S{}.fields())};
}

#if defined(__wasm__)  // one thread, which finds every earlier call done
static inline void wait(Call&) {}
static inline void wake(Call&) {}
#else
// Wait until a call is done: spin for some 50 us, then sleep, which frees the core for a thread that the system has not scheduled.
static inline void wait(Call& c) {
  for (int spins = 0; spins < 2000; spins++) {
    if (c.done.load(std::memory_order_acquire) >= c.pieces) return;
    relax();
  }
#if defined(__linux__)
  c.asleep.fetch_add(1);
  for (int seen; (seen = c.done.load()) < c.pieces;) syscall(SYS_futex, (int*)&c.done, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  c.asleep.fetch_sub(1);
#else
  while (c.done.load(std::memory_order_acquire) < c.pieces) std::this_thread::sleep_for(std::chrono::microseconds(20));
#endif
}
static inline void wake(Call& c) {
#if defined(__linux__)
  if (c.asleep.load()) syscall(SYS_futex, (int*)&c.done, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
#endif
}
#endif

static inline void walk(Call* calls, i64 count, const Op* ops) {
  i64 over = 0;  // the first `over` calls are known to be done
  for (i64 i = 0; i < count; i++) {
    Call& c = calls[i];
    for (; over < c.after; over++) wait(calls[over]);
    Work work{c};
    if (!work.idle()) ops[c.op].work(c.words, work);
    if (work.mine && c.done.fetch_add(work.mine) + work.mine >= c.pieces) wake(c);
  }
}

// Run a list. The calls are this caller's own, so two threads of Python may run two lists at once.
static inline void run_list(const i64* words, i64 count, int threads, const Op* ops) {
  std::unique_ptr<Call[]> calls(new Call[count]);
  i64 most = 0;
  for (i64 i = 0; i < count; i++, words += 3 + words[1]) {
    Call& c = calls[i];
    c.op = words[0], c.after = words[2], c.words = words + 3;
    c.pieces = ops[c.op].pieces(c.words);
    most = c.pieces > most ? c.pieces : most;
  }
  if (most < threads) threads = (int)most;
  if (threads < 2) return walk(calls.get(), count, ops);
  Call* all = calls.get();
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
  walk(all, count, ops);
#elif !defined(__wasm__)
  together([=] { walk(all, count, ops); }, threads);
#endif
}
