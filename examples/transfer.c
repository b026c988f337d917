/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <tarn/batch.h>
#include <tarn/scope.h>

#define TRY(call)                                                                                  \
  do {                                                                                             \
    if ((call) != TARN_OK) {                                                                       \
      goto failed;                                                                                 \
    }                                                                                              \
  } while (0)

/* One dispatch: inputs go up together, a kernel would run, outputs come back together. Every way
 * out, also the one after an error, gives back what is held. */
int main(void) {
  static const float inputs[2][3] = {{1, 2, 3}, {4, 5, 6}};
  static char model[5 << 20]; /* ordinary memory, of any size */
  const uint32_t parameters[] = {2, 3};
  tarn_heap *heap = NULL;
  tarn_pinned *pool = NULL;
  tarn_copier *copier = NULL;
  tarn_stream stream = NULL;
  tarn_scope *scope = NULL;
  tarn_batch *batch = NULL;
  tarn_buffer *output = NULL;
  tarn_ptr blocks[2], weights, words;
  int result = 1;
  TRY(tarn_heap_create(NULL, &heap));
  TRY(tarn_pinned_create(NULL, &pool));
  TRY(tarn_copier_create(pool, NULL, &copier));
  TRY(tarn_stream_create(tarn_heap_device(heap), &stream));
  TRY(tarn_scope_create(heap, 3, stream, &scope));
  TRY(tarn_batch_create(copier, NULL, &batch));
  TRY(tarn_buffer_create(NULL, &output));

  TRY(tarn_scope_alloc(scope, 2, sizeof(model), &weights));
  TRY(tarn_copy_in(copier, weights, model, sizeof(model), stream)); /* at the speed of the link */
  for (uint32_t i = 0; i < 2; i++) {
    TRY(tarn_scope_alloc(scope, i, 256, &blocks[i]));
    TRY(tarn_batch_upload_padded(batch, blocks[i], inputs[i], sizeof(inputs[i]), 256));
  }
  TRY(tarn_scope_alloc(scope, TARN_SCOPE_PARAMETERS, sizeof(parameters), &words));
  TRY(tarn_batch_upload_words(batch, words, parameters, 2));
  TRY(tarn_batch_send(batch, stream));
  /* Here the kernel would be launched on the stream. */
  TRY(tarn_batch_output(batch, blocks[1], sizeof(inputs[1]), NULL));
  TRY(tarn_batch_fetch(batch, stream, NULL));
  TRY(tarn_scope_release(scope, stream));        /* nobody waits: the order keeps it safe */
  TRY(tarn_batch_collect_one(batch, 0, output)); /* this does */
  printf("%zu bytes came back, the last number is %.0f\n", tarn_buffer_length(output),
         (double)((const float *)tarn_buffer_bytes(output))[2]);
  result = 0;

failed:
  if (result != 0) {
    (void)fprintf(stderr, "%s\n", tarn_last_message());
  }
  tarn_buffer_destroy(output);
  (void)tarn_batch_destroy(batch);
  (void)tarn_scope_destroy(scope);
  if (stream != NULL) {
    (void)tarn_copier_stream_retire(copier, stream);
    (void)tarn_stream_retire(heap, stream);
    (void)tarn_stream_destroy(tarn_heap_device(heap), stream);
  }
  (void)tarn_copier_destroy(copier);
  (void)tarn_pinned_destroy(pool, NULL);
  (void)tarn_heap_destroy(heap, NULL);
  return result;
}
