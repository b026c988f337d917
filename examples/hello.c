/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <tarn/tarn.h>

/* Opens the best device there is, a GPU or the simulated one, and says what it is. */
int main(void) {
  tarn_device *device;
  tarn_stream stream;
  if (tarn_device_open(NULL, &device) != TARN_OK ||
      tarn_stream_create(device, &stream) != TARN_OK) {
    (void)fprintf(stderr, "%s\n", tarn_last_message()); /* what happened, and what to do */
    return 1;
  }
  tarn_device_info info = {.size = sizeof(info)};
  (void)tarn_device_get_info(device, &info);
  printf("%s: %s, %llu MiB\n", info.name, info.model, (unsigned long long)info.total_bytes >> 20);
  (void)tarn_stream_synchronize(device, stream);
  (void)tarn_stream_destroy(device, stream);
  tarn_device_close(device);
  return 0;
}
