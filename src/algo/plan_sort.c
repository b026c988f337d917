/* SPDX-License-Identifier: MIT
 *
 * Orders in which buffers are placed or tried. The keys are computed once; a sort compares up to
 * three of them. Every sort is total, so the result does not depend on the C library. No locks. */
#include <stdlib.h>

#include "algo/plan_scene.h"
#include "base/rng.h"

/* The highest load over [begin, end) for every buffer, by a table of maxima of powers of two. */
static tarn_status fill_loads(const tarni_scene *scene, double *values) {
  const uint32_t n = scene->sections;
  const unsigned levels = n == 0 ? 1 : tarni_log2(n) + 1;
  uint64_t *table = calloc((size_t)levels * (n == 0 ? 1 : n), sizeof(*table));
  if (table == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory for the loads of %u sections", n);
  }
  for (uint32_t s = 0; s < n; s++) {
    table[s] = scene->load[s];
  }
  for (unsigned level = 1; level < levels; level++) {
    const uint64_t *below = table + (size_t)(level - 1) * n;
    const uint32_t half = UINT32_C(1) << (level - 1);
    for (uint32_t s = 0; s + 2 * half <= n; s++) {
      table[(size_t)level * n + s] = tarni_max(below[s], below[s + half]);
    }
  }
  for (uint32_t i = 0; i < scene->count; i++) {
    const unsigned level = tarni_log2(scene->end[i] - scene->begin[i]);
    const uint64_t *row = table + (size_t)level * n;
    values[i] = (double)tarni_max(row[scene->begin[i]], row[scene->end[i] - (1u << level)]);
  }
  free(table);
  return TARN_OK;
}

/* Others that live at the same time: all that begin before its end, less all that ended before its
 * begin. */
static tarn_status fill_conflicts(const tarni_scene *scene, double *values) {
  const size_t n = (size_t)scene->sections + 2;
  uint32_t *begun = calloc(n, sizeof(*begun));
  uint32_t *ended = calloc(n, sizeof(*ended));
  if (begun == NULL || ended == NULL) {
    free(begun);
    free(ended);
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory for the conflicts of %u buffers", scene->count);
  }
  for (uint32_t i = 0; i < scene->count; i++) {
    begun[scene->begin[i] + 1]++;
    ended[scene->end[i]]++;
  }
  for (size_t s = 1; s < n; s++) {
    begun[s] += begun[s - 1];
    ended[s] += ended[s - 1];
  }
  for (uint32_t i = 0; i < scene->count; i++) {
    values[i] = (double)(begun[scene->end[i]] - ended[scene->begin[i]]);
  }
  free(begun);
  free(ended);
  return TARN_OK;
}

static void fill_simple(const tarni_scene *scene, double **values) {
  for (uint32_t i = 0; i < scene->count; i++) {
    const uint32_t width = scene->end[i] - scene->begin[i];
    const double span = (double)(scene->times[scene->end[i]] - scene->times[scene->begin[i]]);
    values[TARNI_SORT_SIZE][i] = (double)scene->bytes[i];
    values[TARNI_SORT_WIDTH][i] = width;
    values[TARNI_SORT_WIDTH_CLASS][i] = tarni_log2(width);
    values[TARNI_SORT_SPAN][i] = span;
    values[TARNI_SORT_AREA][i] = span * (double)scene->bytes[i];
    values[TARNI_SORT_EARLY][i] = -(double)scene->begin[i];
    values[TARNI_SORT_LATE][i] = scene->begin[i];
    values[TARNI_SORT_LATE_END][i] = scene->end[i];
  }
}

tarn_status tarni_sorter_create(const tarni_scene *scene, tarni_sorter *sorter) {
  const size_t n = scene->count == 0 ? 1 : scene->count;
  *sorter = (tarni_sorter){.count = scene->count};
  sorter->noise = calloc(n, sizeof(*sorter->noise));
  bool is_full = sorter->noise != NULL;
  for (int key = 0; key < TARNI_SORT_COUNT; key++) {
    sorter->values[key] = calloc(n, sizeof(double));
    is_full = is_full && sorter->values[key] != NULL;
  }
  tarn_status status = TARN_OK;
  if (!is_full) {
    status = tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                        "no memory for the keys of %u buffers", scene->count);
  } else {
    fill_simple(scene, sorter->values);
    status = fill_loads(scene, sorter->values[TARNI_SORT_LOAD]);
  }
  if (status == TARN_OK) {
    status = fill_conflicts(scene, sorter->values[TARNI_SORT_CONFLICTS]);
  }
  if (status != TARN_OK) {
    tarni_sorter_destroy(sorter);
  }
  return status;
}

void tarni_sorter_destroy(tarni_sorter *sorter) {
  for (int key = 0; key < TARNI_SORT_COUNT; key++) {
    free(sorter->values[key]);
  }
  free(sorter->noise);
  *sorter = (tarni_sorter){0};
}

typedef struct sort_context {
  const tarni_sorter *sorter;
  const tarni_sort *sort;
  double amplitude;
} sort_context;

static int compare_ranks(const void *a, const void *b, void *data) {
  const sort_context *context = data;
  const uint32_t x = *(const uint32_t *)a;
  const uint32_t y = *(const uint32_t *)b;
  for (int k = 0; k < TARNI_SORT_KEYS; k++) {
    const double *values = context->sorter->values[context->sort->keys[k]];
    double p = values[x];
    double q = values[y];
    if (k == 0) {
      p *= 1.0 + context->amplitude * context->sorter->noise[x];
      q *= 1.0 + context->amplitude * context->sorter->noise[y];
    }
    if (p != q) {
      return p > q ? -1 : 1;
    }
  }
  return (x > y) - (x < y);
}

void tarni_sorter_run(tarni_sorter *sorter, const tarni_sort *sort, double amplitude, uint64_t seed,
                      uint32_t *order) {
  tarni_rng rng = {seed};
  sort_context context = {sorter, sort, amplitude};
  for (uint32_t i = 0; i < sorter->count; i++) {
    order[i] = i;
    sorter->noise[i] = (double)(tarni_rng_next(&rng) >> 11) / 9007199254740992.0 - 0.5;
  }
  qsort_r(order, sorter->count, sizeof(*order), compare_ranks, &context);
}
