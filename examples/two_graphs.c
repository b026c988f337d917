/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>
#include <tarn/capture.h>
#include <tarn/pinned.h>

enum { BYTES = 1 << 16, REQUESTS = 6 };

typedef struct service {
  tarn_heap *heap;
  tarn_device *device;
  tarn_pinned *pool;
  tarn_stream stream;
  tarn_ptr input, output;         /* made before the capture: their addresses are in the graph */
  unsigned char *sent, *received; /* pinned: what the graph copies from and to must stay */
  tarn_arena *arena;              /* of both graphs, which never run at once */
  tarn_graph *full, *without_upload;
} service;

static int told(tarn_status status) {
  if (status != TARN_OK) {
    (void)fprintf(stderr, "%s\n", tarn_last_message());
  }
  return status != TARN_OK;
}

/* The work of one request, in the order of the stream. The copies stand for kernels. */
static tarn_status enqueue(service *s, bool has_upload) {
  tarn_ptr scratch;
  tarn_status status = TARN_OK;
  if (has_upload) {
    status = tarn_device_copy(s->device, s->input, (uintptr_t)s->sent, BYTES, s->stream);
  }
  if (status != TARN_OK || (status = tarn_alloc(s->heap, BYTES, s->stream, &scratch)) != TARN_OK) {
    return status;
  }
  (void)tarn_device_copy(s->device, scratch, s->input, BYTES, s->stream);
  (void)tarn_device_copy(s->device, s->output, scratch, BYTES, s->stream);
  (void)tarn_free(s->heap, scratch, s->stream); /* the arena's: used again inside the graph */
  return tarn_device_copy(s->device, (uintptr_t)s->received, s->output, BYTES, s->stream);
}

static int capture(service *s, bool has_upload, tarn_graph **graph) {
  const tarn_capture_config config = {.size = sizeof(config), .arena = s->arena};
  tarn_capture *capture;
  if (told(tarn_capture_begin(s->heap, &config, s->stream, &capture))) {
    return 1;
  }
  if (told(enqueue(s, has_upload))) {
    (void)tarn_capture_abort(&capture); /* every exit leaves the heap as it was */
    return 1;
  }
  return told(tarn_capture_end(&capture, graph));
}

/* Answers a request by the shorter graph where the input on the device is still the right one. */
static int serve(service *s, unsigned char value) {
  static bool is_current;
  unsigned char wanted[BYTES];
  memset(wanted, value, sizeof(wanted));
  const bool is_same = is_current && memcmp(s->sent, wanted, BYTES) == 0;
  is_current = false; /* until it is known that the launch went well */
  if (!is_same) {
    memcpy(s->sent, wanted, BYTES);
  }
  if (told(tarn_graph_launch(is_same ? s->without_upload : s->full, s->stream)) ||
      told(tarn_stream_synchronize(s->device, s->stream)) ||
      memcmp(s->received, wanted, BYTES) != 0) {
    return 1;
  }
  is_current = true;
  printf("input %u: %s\n", value, is_same ? "nothing to upload" : "uploaded");
  return 0;
}

static int open_service(service *s) {
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim"}; /* or "cuda:0" */
  const tarn_pinned_config pinned = {.size = sizeof(pinned), .device = "sim"};
  void *sent, *received;
  if (told(tarn_heap_create(&config, &s->heap)) || told(tarn_pinned_create(&pinned, &s->pool)) ||
      told(tarn_stream_create(s->device = tarn_heap_device(s->heap), &s->stream)) ||
      told(tarn_alloc(s->heap, BYTES, s->stream, &s->input)) ||
      told(tarn_alloc(s->heap, BYTES, s->stream, &s->output)) ||
      told(tarn_pinned_alloc(s->pool, BYTES, &sent)) ||
      told(tarn_pinned_alloc(s->pool, BYTES, &received)) ||
      told(tarn_arena_create(s->heap, NULL, &s->arena))) {
    return 1;
  }
  s->sent = sent;
  s->received = received;
  return 0;
}

static int close_service(service *s) {
  (void)tarn_graph_destroy(s->full); /* the graphs first, then what they use */
  (void)tarn_graph_destroy(s->without_upload);
  (void)tarn_arena_destroy(s->arena);
  (void)tarn_free(s->heap, s->input, s->stream);
  (void)tarn_free(s->heap, s->output, s->stream);
  (void)tarn_pinned_free(s->pool, s->sent);
  (void)tarn_pinned_free(s->pool, s->received);
  (void)tarn_stream_retire(s->heap, s->stream);
  (void)tarn_stream_destroy(s->device, s->stream);
  return told(tarn_pinned_destroy(s->pool, NULL)) || told(tarn_heap_destroy(s->heap, NULL));
}

int main(void) {
  static const unsigned char values[REQUESTS] = {1, 1, 2, 2, 2, 1};
  service s = {.heap = NULL};
  if (open_service(&s) || capture(&s, true, &s.full) || capture(&s, false, &s.without_upload)) {
    return 1;
  }
  for (int i = 0; i < REQUESTS; i++) {
    if (serve(&s, values[i])) {
      return 1;
    }
  }
  tarn_arena_info info = {.size = sizeof(info)};
  (void)tarn_arena_get_info(s.arena, &info);
  printf("two graphs, %llu bytes of memory between them\n",
         (unsigned long long)info.high_water_bytes);
  return close_service(&s);
}
