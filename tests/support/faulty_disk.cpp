// A disk that fails: preloaded, it counts the calls that change a folder, and lets the n-th fail, or all from it on.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((decltype(&name))dlsym(RTLD_NEXT, #name))
enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, REMOVE = 16 };

static char folder[4096], last[4096];
static long calls, first = -1, most;
static int kinds, error, shorter;

extern "C" void arm(const char* path, long n, long count, int which, int number, int half) {
  snprintf(folder, sizeof folder, "%s", path);
  calls = 0, first = n, most = count, kinds = which, error = number, shorter = half, last[0] = 0;
}
extern "C" long counted() { return calls; }
extern "C" const char* failed() { return last; }

// True if this call is to fail. The path is at a folder's descriptor, or a descriptor's own if there is none.
static bool hit(int kind, int at, const char* path) {
  if (!folder[0] || !(kind & kinds)) return false;
  char link[64], place[4096], complete[8192];
  place[0] = 0;
  if (!path || path[0] != '/') {
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    const ssize_t n = at == AT_FDCWD ? -1 : readlink(link, place, sizeof place - 1);
    if (n < 0) return false;
    place[n] = 0;
  }
  snprintf(complete, sizeof complete, path && path[0] != '/' ? "%s/%s" : "%s%s", place, path ? path : "");
  if (strncmp(complete, folder, strlen(folder))) return false;
  ++calls;
  if (calls < first || first < 1 || calls >= first + most) return false;
  if (!last[0]) snprintf(last, sizeof last, "%.4000s", complete);
  return true;
}

#define FAILS(kind, at, path)                        \
  if (hit(kind, at, path)) {                         \
    errno = error;                                   \
    return -1;                                       \
  }
#define OPENS(name, parameters, given, at, path)     \
  extern "C" int name parameters {                   \
    mode_t mode = 0;                                 \
    if (flags & O_CREAT) {                           \
      va_list rest;                                  \
      va_start(rest, flags);                         \
      mode = va_arg(rest, mode_t);                   \
      va_end(rest);                                  \
    }                                                \
    if (flags & (O_WRONLY | O_RDWR)) FAILS(OPEN, at, path) \
    return REAL(name) given;                         \
  }
OPENS(open, (const char* path, int flags, ...), (path, flags, mode), AT_FDCWD, path)
OPENS(open64, (const char* path, int flags, ...), (path, flags, mode), AT_FDCWD, path)
OPENS(openat, (int at, const char* path, int flags, ...), (at, path, flags, mode), at, path)
OPENS(openat64, (int at, const char* path, int flags, ...), (at, path, flags, mode), at, path)

extern "C" ssize_t write(int fd, const void* data, size_t size) {
  if (hit(WRITE, fd, nullptr)) {
    if (shorter) return REAL(write)(fd, data, (size + 1) / 2);
    errno = error;
    return -1;
  }
  return REAL(write)(fd, data, size);
}
extern "C" ssize_t writev(int fd, const struct iovec* parts, int count) {
  if (hit(WRITE, fd, nullptr)) {
    if (shorter && count > 0) return REAL(writev)(fd, parts, 1);
    errno = error;
    return -1;
  }
  return REAL(writev)(fd, parts, count);
}
extern "C" int fsync(int fd) {
  FAILS(SYNC, fd, nullptr)
  return REAL(fsync)(fd);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  FAILS(RENAME, AT_FDCWD, from)
  return REAL(rename)(from, to);
}
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  FAILS(OPEN, AT_FDCWD, path)
  return REAL(mkdir)(path, mode);
}
extern "C" int unlink(const char* path) noexcept {
  FAILS(REMOVE, AT_FDCWD, path)
  return REAL(unlink)(path);
}
extern "C" int unlinkat(int at, const char* path, int flags) noexcept {
  FAILS(REMOVE, at, path)
  return REAL(unlinkat)(at, path, flags);
}
