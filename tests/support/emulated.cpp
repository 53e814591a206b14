// The kernels in a process of another processor, under qemu, on the memory of the Python process that has started it.
//
// The one idea: a call's pointers are the other process's addresses. Nothing is mapped there here, so the first touch of a page faults; the
// handler asks for the bytes of that page and maps them at the same address. After the call the bytes that have changed are written back.
//
//     request:'k'                    answer: 'k' length, the kernels' description
//            'r' words count threads            'f' address, for each fault: answered by address, length and the bytes
//            'b' the same, and a burst           'd' result, then address, length and bytes of each change, and a length of 0
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

using i64 = int64_t;
extern "C" {  // kernels.cpp
const char* kernels();
void run(const i64* words, i64 count, i64 threads);
i64 burst(const i64* words, i64 count, i64 threads, const i64* b);
}

struct Chunk {
  char *at, *before;
  i64 bytes;
};
static std::vector<Chunk> chunks;  // reserved once: a handler must not allocate
static std::atomic_flag busy = ATOMIC_FLAG_INIT;

static void get(void* to, i64 bytes) {
  for (char* p = (char*)to; bytes;) {
    const i64 n = read(0, p, bytes);
    if (n <= 0) _exit(0);  // the other process has ended
    p += n, bytes -= n;
  }
}
static void give(const void* from, i64 bytes) {
  for (const char* p = (const char*)from; bytes;) {
    const i64 n = write(1, p, bytes);
    if (n <= 0) _exit(0);
    p += n, bytes -= n;
  }
}
static void give(char letter, i64 number) { give(&letter, 1), give(&number, 8); }

static void* memory(i64 bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) _exit(3);
  return p;
}
static void on_fault(int, siginfo_t* info, void*) {
  char* const address = (char*)info->si_addr;
  while (busy.test_and_set()) usleep(10);
  bool known = false;  // another thread has just fetched it
  for (const Chunk& c : chunks) known |= address >= c.at && address < c.at + c.bytes;
  if (!known) {
    i64 place[2];
    give('f', (i64)address), get(place, sizeof place);
    if (place[1] <= 0 || chunks.size() == chunks.capacity()) _exit(2);  // the other process has no such memory
    char *fresh = (char*)memory(place[1]), *before = (char*)memory(place[1]);
    get(before, place[1]), std::memcpy(fresh, before, place[1]);
    if (mremap(fresh, place[1], place[1], MREMAP_MAYMOVE | MREMAP_FIXED, (void*)place[0]) == MAP_FAILED) _exit(3);
    chunks.push_back({(char*)place[0], before, place[1]});
  }
  busy.clear();
}

int main() {
  chunks.reserve(1 << 20);
  struct sigaction action {};
  action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  for (;;) {
    char letter;
    get(&letter, 1);
    if (letter == 'k') {
      const char* text = kernels();
      give('k', (i64)strlen(text)), give(text, strlen(text));
      continue;
    }
    i64 a[4], result = 0;
    get(a, letter == 'b' ? 32 : 24);
    if (letter == 'b') result = burst((const i64*)a[0], a[1], a[2], (const i64*)a[3]);
    else run((const i64*)a[0], a[1], a[2]);
    give('d', result);
    for (const Chunk& c : chunks) {
      for (i64 i = 0, end; i < c.bytes; i = end) {
        for (end = i; end < c.bytes && c.at[end] == c.before[end];) end += end % 8 || std::memcmp(c.at + end, c.before + end, 8) ? 1 : 8;
        for (i = end; end < c.bytes && c.at[end] != c.before[end];) end++;
        const i64 change[2] = {(i64)c.at + i, end - i};
        if (end > i) give(change, sizeof change), give(c.at + i, end - i);
      }
      munmap(c.at, c.bytes), munmap(c.before, c.bytes);
    }
    chunks.clear();
    const i64 none[2] = {0, 0};
    give(none, sizeof none);
  }
}
