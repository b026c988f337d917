/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <tarn/sim.h>

static void say(const tarn_sim_finding *finding, void *user) {
  (void)user;
  printf("found: %s\n", finding->message);
}

static void run(void *user) {
  printf("kernel %s runs\n", (const char *)user);
}

/* Two kernels in an order that the seed chooses, a call that fails by plan, a mistake that is found
 * when it is made, and what all of it would have cost. */
int main(void) {
  tarn_device *device;
  tarn_stream a, b, none;
  if (tarn_device_open("sim:16G,seed=7", &device) != TARN_OK ||
      tarn_stream_create(device, &a) != TARN_OK || tarn_stream_create(device, &b) != TARN_OK) {
    (void)fprintf(stderr, "%s\n", tarn_last_message());
    return 1;
  }
  (void)tarn_sim_set_on_finding(device, say, NULL);

  tarn_sim_kernel kernel = {.size = sizeof(kernel), .run = run, .user = "a"};
  (void)tarn_sim_launch(device, &kernel, a);
  kernel.user = "b";
  (void)tarn_sim_launch(device, &kernel, b);
  (void)tarn_stream_synchronize(device, a);
  (void)tarn_stream_synchronize(device, b);

  (void)tarn_sim_fail(device, TARN_CALL_STREAM_CREATE, 1, 1, 0);
  if (tarn_stream_create(device, &none) != TARN_OK) {
    printf("as planned: %s\n", tarn_last_message());
  }

  const tarn_sim_range nowhere = {.address = 4096, .bytes = 64, .is_write = true};
  const tarn_sim_kernel mistake = {.size = sizeof(mistake), .ranges = &nowhere, .n_ranges = 1};
  (void)tarn_sim_launch(device, &mistake, a); /* found here; the GPU breaks when it gets there */
  const bool is_lost = tarn_stream_synchronize(device, a) == TARN_DEVICE_LOST;

  tarn_sim_state state = {.size = sizeof(state)};
  (void)tarn_sim_get_state(device, &state);
  printf("%llu operations, %llu ns\n", (unsigned long long)state.operations,
         (unsigned long long)state.virtual_ns);
  tarn_device_close(device);
  return is_lost ? 0 : 1;
}
