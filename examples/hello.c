/* SPDX-License-Identifier: MIT
 *
 * Opens the best device there is, a GPU or the simulated one, and says what it is. */
#include <stdio.h>

#include "tarn/tarn.h"

int main(void) {
  tarn_device *device;
  tarn_stream stream;
  if (tarn_device_open(NULL, &device) != TARN_OK) { /* NULL: the best there is */
    (void)fprintf(stderr, "%s\n", tarn_last_message());
    return 1;
  }
  tarn_device_info info = {.size = sizeof(info)};
  tarn_status status = tarn_device_get_info(device, &info);
  if (status == TARN_OK) {
    status = tarn_stream_create(device, &stream);
  }
  if (status == TARN_OK) {
    printf("%s: %s, %.1f GiB\n", info.name, info.model, (double)info.total_bytes / (1 << 30));
    status = tarn_stream_synchronize(device, stream);
    (void)tarn_stream_destroy(device, stream);
  }
  tarn_device_close(device);
  return status == TARN_OK ? 0 : 1;
}
