/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <tarn/capture.h>

enum { BYTES = 1 << 20, LAYERS = 8, REPLAYS = 5 };

static int told(tarn_status status) {
  if (status != TARN_OK) {
    (void)fprintf(stderr, "%s\n", tarn_last_message());
  }
  return status != TARN_OK;
}

/* A model of many layers, each with a temporary of its own; copies stand for kernels. */
static tarn_status run_layers(tarn_heap *heap, tarn_ptr input, tarn_ptr output,
                              tarn_stream stream) {
  tarn_device *device = tarn_heap_device(heap);
  tarn_ptr last = input, next;
  for (int i = 0; i < LAYERS; i++) {
    const tarn_status status = tarn_alloc(heap, BYTES, stream, &next);
    if (status != TARN_OK) {
      return status;
    }
    (void)tarn_device_copy(device, next, last, BYTES, stream);
    if (last != input) {
      (void)tarn_free(heap, last, stream); /* the layer after the next one gets its memory */
    }
    last = next;
  }
  (void)tarn_device_copy(device, output, last, BYTES, stream);
  return tarn_free(heap, last, stream);
}

/* Inputs and outputs keep their addresses: they are allocated first, updated in place before each
 * replay and read after it. */
int main(void) {
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim"}; /* or "cuda:0" */
  static unsigned char result[BYTES];
  tarn_heap *heap;
  tarn_stream stream;
  tarn_ptr input, output;
  tarn_capture *capture;
  tarn_graph *graph;
  if (told(tarn_heap_create(&config, &heap))) {
    return 1;
  }
  tarn_device *device = tarn_heap_device(heap);
  if (told(tarn_stream_create(device, &stream)) || told(tarn_alloc(heap, BYTES, stream, &input)) ||
      told(tarn_alloc(heap, BYTES, stream, &output)) ||
      told(tarn_capture_begin(heap, NULL, stream, &capture))) {
    return 1;
  }
  if (told(run_layers(heap, input, output, stream))) {
    (void)tarn_capture_abort(&capture);
    return 1;
  }
  if (told(tarn_capture_end(&capture, &graph))) {
    return 1;
  }
  for (int i = 1; i <= REPLAYS; i++) {
    if (told(tarn_device_fill(device, input, (unsigned char)i, BYTES, stream)) ||
        told(tarn_graph_launch(graph, stream)) ||
        told(tarn_device_copy(device, (uintptr_t)result, output, BYTES, stream)) ||
        told(tarn_stream_synchronize(device, stream)) || result[0] != i || result[BYTES - 1] != i) {
      return 1;
    }
  }
  tarn_graph_info info = {.size = sizeof(info)};
  (void)tarn_graph_get_info(graph, &info);
  printf("%d replays; %llu temporaries of %llu bytes in all share %llu\n", REPLAYS,
         (unsigned long long)info.allocations, (unsigned long long)info.alloc_bytes,
         (unsigned long long)info.bytes);
  (void)tarn_graph_destroy(graph);
  (void)tarn_free(heap, input, stream);
  (void)tarn_free(heap, output, stream);
  (void)tarn_stream_retire(heap, stream);
  (void)tarn_stream_destroy(device, stream);
  return told(tarn_heap_destroy(heap, NULL));
}
