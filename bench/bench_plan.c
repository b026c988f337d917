/* SPDX-License-Identifier: MIT
 *
 * How fast and how well the planner plans: rectangles cut into pieces, whose best height is known,
 * and random graphs. Prints one line a problem; `bench_plan FILE...` plans tables instead. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/rng.h"
#include "tarn/plan.h"

static double user_seconds(void) {
  struct rusage usage;
  (void)getrusage(RUSAGE_SELF, &usage);
  return (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6;
}

static void plan_and_print(const char *name, const tarn_plan_buffer *buffers, uint64_t count) {
  const tarn_plan_problem problem = {.size = sizeof(problem), .buffers = buffers, .count = count};
  const tarn_plan_options options = {.size = sizeof(options), .max_ns = 5000000000u};
  tarn_plan_info info = {.size = sizeof(info)};
  tarn_plan *plan = NULL;
  const double begin = user_seconds();
  if (tarn_plan_create(&problem, &options, &plan) != TARN_OK ||
      tarn_plan_get_info(plan, &info) != TARN_OK) {
    printf("%-24s %s\n", name, tarn_last_message());
    return;
  }
  const double seconds = user_seconds() - begin;
  printf("%-24s %7llu buffers  bound %12llu  +%8.4f %%  %7.3f s  %9llu steps%s\n", name,
         (unsigned long long)count, (unsigned long long)info.bound,
         100.0 * ((double)info.height / (double)info.bound - 1.0), seconds,
         (unsigned long long)info.steps, info.is_proven ? "  proven" : "");
  (void)fflush(stdout);
  tarn_plan_destroy(plan);
}

/* A square of 1024 x 1024 cut into pieces, in time and in offset. */
static void bench_cut(uint64_t seed, uint64_t count) {
  tarni_rng rng = {seed};
  char name[64];
  tarn_plan_buffer *buffers = calloc(count, sizeof(*buffers));
  if (buffers == NULL) {
    return;
  }
  buffers[0] = (tarn_plan_buffer){.bytes = 1024, .begin = 0, .end = 1024};
  for (uint64_t n = 1; n < count;) {
    tarn_plan_buffer *one = &buffers[tarni_rng_below(&rng, n)];
    buffers[n] = *one;
    if (tarni_rng_below(&rng, 2) == 0 && one->end - one->begin > 1) {
      const uint64_t cut = one->begin + 1 + tarni_rng_below(&rng, one->end - one->begin - 1);
      one->end = cut;
      buffers[n++].begin = cut;
    } else if (one->bytes > 1) {
      one->bytes = 1 + tarni_rng_below(&rng, one->bytes - 1);
      buffers[n].bytes -= one->bytes;
      n++;
    }
  }
  (void)snprintf(name, sizeof(name), "square %llu", (unsigned long long)seed);
  plan_and_print(name, buffers, count);
  free(buffers);
}

/* Like a training step: what layers keep nests, what they need for a moment does not. */
static void bench_graph(uint64_t seed, uint64_t count) {
  tarni_rng rng = {seed};
  char name[64];
  tarn_plan_buffer *buffers = calloc(count, sizeof(*buffers));
  if (buffers == NULL) {
    return;
  }
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t time = tarni_rng_below(&rng, count);
    const bool is_kept = tarni_rng_below(&rng, 4) == 0;
    buffers[i].bytes = UINT64_C(512) << tarni_rng_below(&rng, 17);
    buffers[i].begin = is_kept ? time : tarni_rng_below(&rng, 2 * count);
    buffers[i].end = is_kept ? 2 * count - time + tarni_rng_below(&rng, 16)
                             : buffers[i].begin + 1 + tarni_rng_below(&rng, 12);
  }
  (void)snprintf(name, sizeof(name), "graph %llu", (unsigned long long)seed);
  plan_and_print(name, buffers, count);
  free(buffers);
}

static int bench_file(const char *path) {
  enum { ROOM = 64 << 20 };
  FILE *file = fopen(path, "rb");
  char *text = file == NULL ? NULL : malloc(ROOM);
  tarn_plan_buffer *buffers = NULL;
  uint64_t *ids = NULL;
  uint64_t count = 0;
  if (text == NULL) {
    (void)fprintf(stderr, "bench_plan: cannot read %s\n", path);
    if (file != NULL) {
      (void)fclose(file);
    }
    return 1;
  }
  const size_t length = fread(text, 1, ROOM, file);
  (void)fclose(file);
  if (tarn_plan_read(text, length, &buffers, &ids, &count) != TARN_OK) {
    (void)fprintf(stderr, "bench_plan: %s: %s\n", path, tarn_last_message());
    free(text);
    return 1;
  }
  plan_and_print(path, buffers, count);
  free(text);
  free(buffers);
  free(ids);
  return 0;
}

int main(int argc, char **argv) {
  int result = 0;
  for (int i = 1; i < argc; i++) {
    result |= bench_file(argv[i]);
  }
  for (uint64_t seed = 1; seed <= 4 && argc == 1; seed++) {
    bench_cut(seed, 100 * seed);
  }
  for (uint64_t seed = 1; seed <= 4 && argc == 1; seed++) {
    bench_graph(seed, seed < 3 ? 1000 * seed : 10000 * seed);
  }
  return result;
}
