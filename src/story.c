/* SPDX-License-Identifier: MIT
 *
 * What a capture has allocated, in the order of its calls: sizes, lifetimes, and the places in the
 * graph where they begin and end. A layout is made from it. */
#include <stdlib.h>

#include "arena.h"
#include "base/bits.h"

bool tarni_story_room(tarni_story *story) {
  if (story->n_requests < story->requests_capacity) {
    return true;
  }
  if (story->requests_capacity > UINT32_MAX / 4) {
    return false;
  }
  const uint32_t capacity = story->requests_capacity * 2 + 64;
  tarni_request *requests = realloc(story->requests, capacity * sizeof(*requests));
  if (requests == NULL) {
    return false;
  }
  story->requests = requests;
  story->requests_capacity = capacity;
  return true;
}

uint32_t tarni_story_alloc(tarni_story *story, const tarni_request *request) {
  tarn_assert(story->n_requests < story->requests_capacity);
  tarni_request *made = &story->requests[story->n_requests];
  *made = *request;
  made->begin = story->now++;
  made->end = UINT64_MAX;
  made->past = TARNI_REACH_NEVER;
  story->alloc_bytes += request->size;
  story->live += request->size;
  story->peak = tarni_max(story->peak, story->live);
  story->bytes = tarni_max(story->bytes, request->offset + request->size);
  return story->n_requests++;
}

void tarni_story_free(tarni_story *story, uint32_t request, uint32_t past) {
  tarni_request *freed = &story->requests[request];
  freed->end = story->now++;
  freed->past = past;
  story->live -= freed->size;
}

void tarni_story_close(tarni_story *story) {
  tarni_reach_close(&story->reach);
  free(story->requests);
  *story = (tarni_story){0};
}
