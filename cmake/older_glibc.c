// cmake/older_glibc.c — functions of newer glibcs that our archives call, for a glibc without them: 2.28 or later
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the versions below are those of x86-64"
#endif

// 2.32; read by libstdc++: with one thread, it counts without atomic operations.
char __libc_single_threaded = 0;

// 2.30
pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// 2.30; std::condition_variable waits with it. Only if the system's clock is set back meanwhile, a wait takes longer.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  struct timespec here, there;
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, until);
  if (clock_gettime(clock, &here) || clock_gettime(CLOCK_REALTIME, &there)) return errno;
  there.tv_sec += until->tv_sec - here.tv_sec;
  there.tv_nsec += until->tv_nsec - here.tv_nsec;
  if (there.tv_nsec < 0) --there.tv_sec, there.tv_nsec += 1000000000;
  if (there.tv_nsec >= 1000000000) ++there.tv_sec, there.tv_nsec -= 1000000000;
  return pthread_cond_timedwait(condition, mutex, &there);
}

// 2.33; before, they were inline calls of these, with the version of the struct.
int __xstat(int version, const char* path, struct stat* into);
int __lxstat(int version, const char* path, struct stat* into);
int __fxstat(int version, int file, struct stat* into);
int __xmknod(int version, const char* path, mode_t mode, dev_t* device);
int stat(const char* path, struct stat* into) { return __xstat(1, path, into); }
int lstat(const char* path, struct stat* into) { return __lxstat(1, path, into); }
int fstat(int file, struct stat* into) { return __fxstat(1, file, into); }
int mknod(const char* path, mode_t mode, dev_t device) { return __xmknod(0, path, mode, &device); }
struct stat64;
int stat64(const char* path, struct stat64* into) { return __xstat(1, path, (struct stat*)into); }
int lstat64(const char* path, struct stat64* into) { return __lxstat(1, path, (struct stat*)into); }
int fstat64(int file, struct stat64* into) { return __fxstat(1, file, (struct stat*)into); }

// 2.33; LLVM's statistics, which nothing prints.
struct mallinfo2 mallinfo2(void) {
  return (struct mallinfo2){0};
}

// 2.36; std::random_device.
uint32_t arc4random(void) {
  uint32_t out;
  while (getrandom(&out, sizeof out, 0) != sizeof out) {
  }
  return out;
}

// 2.38; what its headers make of strtol and sscanf for C++. This file is C without _GNU_SOURCE, and gets the others.
long __isoc23_strtol(const char* text, char** end, int base) { return strtol(text, end, base); }
long long __isoc23_strtoll(const char* text, char** end, int base) { return strtoll(text, end, base); }
unsigned long __isoc23_strtoul(const char* text, char** end, int base) { return strtoul(text, end, base); }
unsigned long long __isoc23_strtoull(const char* text, char** end, int base) { return strtoull(text, end, base); }
int __isoc23_sscanf(const char* text, const char* format, ...) {
  va_list into;
  va_start(into, format);
  const int count = vsscanf(text, format, into);
  va_end(into);
  return count;
}
