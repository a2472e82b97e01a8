// Preloaded into zdb: its monotonic clock runs 32 times as fast. Before zdb ends it spins, on all cores, until its last prefetched block is six
// seconds old, which is several times what its work takes. What zdb says does not depend on it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

#define FASTER 32
#define SECOND 1000000000LL

static int (*real)(clockid_t, struct timespec *);
static long long start;

__attribute__((constructor)) static void begin(void) {
  struct timespec t;
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  if (real(CLOCK_MONOTONIC, &t) == 0) start = t.tv_sec * SECOND + t.tv_nsec;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  if (!real) begin();
  int failed = real(clock, t);
  if (failed || clock != CLOCK_MONOTONIC) return failed;
  long long now = t->tv_sec * SECOND + t->tv_nsec;
  now = start + (now - start) * FASTER;
  t->tv_sec = now / SECOND;
  t->tv_nsec = now % SECOND;
  return 0;
}
