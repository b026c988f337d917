/* SPDX-License-Identifier: MIT */
#include "algo/plan_scene.h"
tarn_status tarni_window_run(tarni_run *run) {
  (void)run;
  return TARN_OK;
}
