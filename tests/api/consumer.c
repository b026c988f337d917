/* SPDX-License-Identifier: MIT
 *
 * A program that uses an installed tarn as a stranger would: public headers, one library. Also
 * compiled as C++ by way of consumer.cpp. Exit status 0: it works. */
#include <stdio.h>
#include <string.h>

#include "tarn/sim.h"
#include "tarn/tarn.h"

static int fail(const char *what) {
  (void)fprintf(stderr, "consumer: %s: %s\n", what, tarn_last_message());
  return 1;
}

int main(void) {
  char version[32];
  (void)snprintf(version, sizeof(version), "%d.%d.%d", TARN_VERSION_MAJOR, TARN_VERSION_MINOR,
                 TARN_VERSION_PATCH);
  if (strcmp(version, tarn_version()) != 0) {
    return fail("the header and the library are of different versions");
  }
  tarn_device *device = NULL;
  if (tarn_device_open("sim:1G", &device) != TARN_OK) {
    return fail("tarn_device_open");
  }
  tarn_device_info info;
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  uint64_t findings = 1;
  if (tarn_device_get_info(device, &info) != TARN_OK || !info.is_simulated) {
    return fail("tarn_device_get_info");
  }
  if (tarn_sim_finding_count(device, &findings) != TARN_OK || findings != 0) {
    return fail("tarn_sim_finding_count");
  }
  printf("tarn %s: %s, %llu bytes\n", tarn_version(), info.model,
         (unsigned long long)info.total_bytes);
  tarn_device_close(device);
  return 0;
}
