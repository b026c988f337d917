/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <tarn/tarn.h>

static int fail(void) {
  (void)fprintf(stderr, "%s\n", tarn_last_message());
  return 1;
}

/* A model in memory, a step of work whose needs are measured, and a pause in which the device has
 * all of its memory back: every address and every byte is there again afterwards. */
int main(void) {
  const tarn_stats_scope_config exact = {.size = sizeof(exact), .is_exact = true};
  tarn_stats_scope_result step = {.size = sizeof(step)};
  tarn_heap_stats stats = {.size = sizeof(stats)};
  tarn_stats_scope *scope;
  tarn_heap *heap;
  tarn_ptr weights, activations;
  if (tarn_heap_create(NULL, &heap) != TARN_OK ||
      tarn_alloc(heap, 24 << 20, NULL, &weights) != TARN_OK ||
      tarn_device_fill(tarn_heap_device(heap), weights, 7, 24 << 20, NULL) != TARN_OK ||
      tarn_stats_scope_begin(heap, &exact, &scope) != TARN_OK) {
    return fail();
  }
  for (uint64_t layer = 1; layer <= 4; layer++) {
    if (tarn_alloc(heap, layer << 20, NULL, &activations) != TARN_OK ||
        tarn_free(heap, activations, NULL) != TARN_OK) {
      return fail();
    }
  }
  if (tarn_stats_scope_end(scope, &step) != TARN_OK) {
    return fail();
  }
  printf("the step: %llu allocations, at most %llu MiB live\n",
         (unsigned long long)step.allocations, (unsigned long long)(step.live_peak_bytes >> 20));

  if (tarn_heap_sleep(heap, TARN_SLEEP_SAVE) != TARN_OK ||
      tarn_heap_get_stats(heap, &stats) != TARN_OK) {
    return fail();
  }
  printf("asleep: %llu MiB held, %llu MiB to come back\n",
         (unsigned long long)(stats.reserved_bytes >> 20),
         (unsigned long long)(stats.asleep_bytes >> 20));
  if (tarn_heap_wake(heap) != TARN_OK || tarn_free(heap, weights, NULL) != TARN_OK ||
      tarn_heap_destroy(heap, NULL) != TARN_OK) {
    return fail();
  }
  printf("awake, and done\n");
  return 0;
}
