/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <tarn/heap.h>

int main(void) {
  const size_t bytes = 64u << 20;
  tarn_heap *heap;
  tarn_stream stream;
  tarn_ptr block;
  if (tarn_heap_create(NULL, &heap) != TARN_OK || /* the best device there is, all defaults */
      tarn_stream_create(tarn_heap_device(heap), &stream) != TARN_OK ||
      tarn_alloc(heap, bytes, stream, &block) != TARN_OK || /* in the order of the stream */
      tarn_device_fill(tarn_heap_device(heap), block, 42, bytes, stream) != TARN_OK ||
      tarn_free(heap, block, stream) != TARN_OK) { /* at once: the stream's order keeps it safe */
    (void)fprintf(stderr, "%s\n", tarn_last_message()); /* what happened, and what to do */
    return 1;
  }
  tarn_device_info info = {.size = sizeof(info)};
  (void)tarn_device_get_info(tarn_heap_device(heap), &info);
  printf("%s: 64 MiB allocated, filled and freed in stream order\n", info.model);
  (void)tarn_stream_retire(heap, stream);
  (void)tarn_stream_destroy(tarn_heap_device(heap), stream);
  return tarn_heap_destroy(heap, NULL) == TARN_OK ? 0 : 1;
}
