/* SPDX-License-Identifier: MIT
 *
 * Plays a scene while the n-th driver call fails, for every n, once and for good, with codes for
 * shortage, a wrong argument, a missing feature and a broken device; then once more without. */
#ifndef TARN_FAULT_RUN_H
#define TARN_FAULT_RUN_H

#include "fault/fault_scene.h"

void fault_run_all(const fault_scene *scene);

/* The same while such a heap is made, and while one in the middle of its life is destroyed. */
void fault_create_all(const tarn_heap_config *config);
void fault_destroy_all(const tarn_heap_config *config);

/* From the nth driver call on, so many fail (0: all) with this code of the driver. */
void fault_arm(fault_world *w, uint64_t nth, uint64_t times, int code);
/* The fault is over. Returns how many calls it struck. */
uint64_t fault_disarm(fault_world *w);

#endif
