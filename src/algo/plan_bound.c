/* SPDX-License-Identifier: MIT
 *
 * The scene of a problem: which buffers need memory, the sections of time between their begins and
 * ends, the load of each, and from that the lower bound and where it binds. Pure, no locks.
 *
 * The bound of a section: every buffer starts at a multiple of the unit, so each but the highest
 * takes its size rounded up to the unit; the highest may be the one with the most padding. */
#include <stdlib.h>

#include "algo/plan_scene.h"

/* Sums stay below this, so that no later sum of two of them overflows. */
static const uint64_t scene_limit = UINT64_C(1) << 62;

static uint64_t alignment_of(const tarni_plan_buffer *buffer) {
  return buffer->alignment == 0 ? 1 : buffer->alignment;
}

static bool needs_memory(const tarni_plan_buffer *buffer) {
  return buffer->bytes != 0 && buffer->begin < buffer->end;
}

/* Counts what needs memory and finds the unit; refuses what is not a problem. */
static tarn_status scene_survey(const tarni_plan_problem *problem, tarni_scene *scene) {
  uint64_t total = 0;
  scene->unit = UINT64_C(1) << 63;
  for (uint32_t i = 0; i < problem->count; i++) {
    const tarni_plan_buffer *buffer = &problem->buffers[i];
    const uint64_t alignment = alignment_of(buffer);
    uint64_t stack = 0;
    if (!tarni_is_pow2(alignment)) {
      return tarni_fail(TARN_INVALID, "plan", NULL, "Use a power of two.",
                        "the alignment of buffer %u is %llu", i, (unsigned long long)alignment);
    }
    if (buffer->end < buffer->begin) {
      return tarni_fail(TARN_INVALID, "plan", NULL, "Give each buffer a lifetime [begin, end).",
                        "the lifetime of buffer %u ends at %llu, before it begins at %llu", i,
                        (unsigned long long)buffer->end, (unsigned long long)buffer->begin);
    }
    if (!needs_memory(buffer)) {
      continue;
    }
    if (!tarni_align_up_checked(buffer->bytes, alignment, &stack) ||
        !tarni_add(total, stack, &total) || total > scene_limit) {
      return tarni_fail(TARN_OVERFLOWED, "plan", NULL, "Check the sizes.",
                        "the sizes up to buffer %u add up to more than 2^62 bytes", i);
    }
    scene->unit = tarni_min(scene->unit, alignment);
    scene->count++;
  }
  return TARN_OK;
}

static bool scene_allocate(tarni_scene *scene) {
  const size_t n = scene->count == 0 ? 1 : scene->count;
  scene->ids = calloc(n, sizeof(*scene->ids));
  scene->begin = calloc(n, sizeof(*scene->begin));
  scene->end = calloc(n, sizeof(*scene->end));
  scene->bytes = calloc(n, sizeof(*scene->bytes));
  scene->stack = calloc(n, sizeof(*scene->stack));
  scene->alignment = calloc(n, sizeof(*scene->alignment));
  scene->times = calloc(2 * n, sizeof(*scene->times));
  scene->load = calloc(2 * n, sizeof(*scene->load));
  return scene->ids != NULL && scene->begin != NULL && scene->end != NULL && scene->bytes != NULL &&
         scene->stack != NULL && scene->alignment != NULL && scene->times != NULL &&
         scene->load != NULL;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
  while (b != 0) {
    const uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

static void scene_fill(const tarni_plan_problem *problem, tarni_scene *scene) {
  uint32_t n = 0;
  scene->is_plain = true;
  for (uint32_t i = 0; i < problem->count; i++) {
    const tarni_plan_buffer *buffer = &problem->buffers[i];
    if (!needs_memory(buffer)) {
      continue;
    }
    scene->ids[n] = i;
    scene->bytes[n] = buffer->bytes;
    scene->alignment[n] = alignment_of(buffer);
    scene->stack[n] = tarni_align_up(buffer->bytes, scene->unit);
    scene->is_plain =
        scene->is_plain && scene->alignment[n] == scene->unit && scene->stack[n] == scene->bytes[n];
    scene->grain = common_divisor(scene->bytes[n], scene->grain);
    if (scene->alignment[n] > 1) {
      scene->grain = common_divisor(scene->alignment[n], scene->grain);
    }
    scene->times[2 * (size_t)n] = buffer->begin;
    scene->times[2 * (size_t)n + 1] = buffer->end;
    n++;
  }
  tarn_assert(n == scene->count);
}

static int compare_times(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a;
  const uint64_t y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* The section that begins at a time. pre: one does, or the time is the last end. */
static uint32_t section_at(const tarni_scene *scene, uint64_t time) {
  uint32_t low = 0;
  uint32_t high = scene->sections;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (scene->times[middle] < time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  tarn_assert(scene->times[low] == time);
  return low;
}

static void scene_cut(const tarni_plan_problem *problem, tarni_scene *scene) {
  const size_t n_times = 2 * (size_t)scene->count;
  uint32_t n = 0;
  qsort(scene->times, n_times, sizeof(*scene->times), compare_times);
  for (size_t i = 0; i < n_times; i++) {
    if (n == 0 || scene->times[n - 1] != scene->times[i]) {
      scene->times[n++] = scene->times[i];
    }
  }
  scene->sections = n == 0 ? 0 : n - 1;
  for (uint32_t i = 0; i < scene->count; i++) {
    const tarni_plan_buffer *buffer = &problem->buffers[scene->ids[i]];
    scene->begin[i] = section_at(scene, buffer->begin);
    scene->end[i] = section_at(scene, buffer->end);
  }
}

typedef struct scene_pad {
  uint64_t bytes;
  uint32_t buffer;
} scene_pad;

/* The largest first. */
static int compare_pads(const void *a, const void *b) {
  const scene_pad *x = a;
  const scene_pad *y = b;
  return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* The first section from here on that is not painted; next[s] is s where s is not. */
static uint32_t next_unpainted(uint32_t *next, uint32_t section) {
  while (next[section] != section) {
    next[section] = next[next[section]];
    section = next[section];
  }
  return section;
}

/* The largest padding of each section by painting: the largest paddings come first, and what is
 * painted stays. pads and next have room for all buffers and one more than all sections. */
static void paint(const tarni_scene *scene, scene_pad *pads, uint32_t *next, uint64_t *padding) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < scene->count; i++) {
    if (scene->stack[i] != scene->bytes[i]) {
      pads[n++] = (scene_pad){.bytes = scene->stack[i] - scene->bytes[i], .buffer = i};
    }
  }
  qsort(pads, n, sizeof(*pads), compare_pads);
  for (uint32_t s = 0; s <= scene->sections; s++) {
    next[s] = s;
  }
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t end = scene->end[pads[i].buffer];
    uint32_t s = next_unpainted(next, scene->begin[pads[i].buffer]);
    while (s < end) {
      padding[s] = pads[i].bytes;
      next[s] = s + 1;
      s = next_unpainted(next, s);
    }
  }
}

static tarn_status find_padding(const tarni_scene *scene, uint64_t **padding) {
  scene_pad *pads = calloc((size_t)scene->count + 1, sizeof(*pads));
  uint32_t *next = calloc((size_t)scene->sections + 1, sizeof(*next));
  *padding = calloc((size_t)scene->sections + 1, sizeof(**padding));
  const bool has_memory = pads != NULL && next != NULL && *padding != NULL;
  if (has_memory) {
    paint(scene, pads, next, *padding);
  } else {
    free(*padding);
  }
  free(pads);
  free(next);
  return has_memory ? TARN_OK
                    : tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                                 "no memory for %u sections", scene->sections);
}

/* Loads by differences. */
static tarn_status scene_bound(tarni_scene *scene) {
  uint64_t *padding;
  TARN_TRY(find_padding(scene, &padding));
  for (uint32_t i = 0; i < scene->count; i++) {
    scene->load[scene->begin[i]] += scene->stack[i];
    scene->load[scene->end[i]] -= scene->stack[i]; /* wraps, and back in the sum below */
  }
  uint64_t sum = 0;
  for (uint32_t s = 0; s < scene->sections; s++) {
    sum += scene->load[s];
    scene->load[s] = sum;
    const uint64_t bound = sum - padding[s];
    if (bound > scene->bound) {
      scene->bound = bound;
      scene->bind_section = s;
    }
  }
  if (scene->grain > 1) {
    const uint64_t rest = scene->bound % scene->grain;
    scene->bound += rest == 0 ? 0 : scene->grain - rest;
  }
  free(padding);
  return TARN_OK;
}

tarn_status tarni_scene_create(const tarni_plan_problem *problem, tarni_scene *scene) {
  *scene = (tarni_scene){0};
  TARN_TRY(scene_survey(problem, scene));
  if (!scene_allocate(scene)) {
    tarni_scene_destroy(scene);
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory for %u buffers", problem->count);
  }
  scene_fill(problem, scene);
  scene_cut(problem, scene);
  const tarn_status status = scene_bound(scene);
  if (status != TARN_OK) {
    tarni_scene_destroy(scene);
  }
  return status;
}

void tarni_scene_destroy(tarni_scene *scene) {
  free(scene->ids);
  free(scene->begin);
  free(scene->end);
  free(scene->bytes);
  free(scene->stack);
  free(scene->alignment);
  free(scene->times);
  free(scene->load);
  *scene = (tarni_scene){0};
}
