/* SPDX-License-Identifier: MIT */
#include "algo/plan_scene.h"
tarn_status tarni_order_solve(const tarni_plan_problem *problem, const tarni_plan_limits *limits,
                              tarni_plan *plan) {
  (void)problem;
  (void)limits;
  (void)plan;
  return TARN_UNSUPPORTED;
}
tarn_status tarni_order_conflicts(const tarni_plan_problem *problem, uint64_t **conflicts,
                                  size_t *words) {
  (void)problem;
  (void)conflicts;
  (void)words;
  return TARN_UNSUPPORTED;
}
