/* SPDX-License-Identifier: MIT
 *
 * A scene of transfers for tests of failures: copies of every kind, a batch and a scope, played
 * while something fails and once more when it no longer does. */
#ifndef TARN_FAULT_TRANSFER_H
#define TARN_FAULT_TRANSFER_H

#include "support/dock.h"

typedef struct fault_transfers {
  dock dock;
  bool is_armed; /* a fault may strike now */
  bool is_for_good;
  tarn_status expected;
  void (*on_call)(bool is_inside); /* around every call; may be NULL */
  uint64_t n_failed;
  tarn_scope *scope;  /* one that could not be destroyed yet */
  tarn_ptr blocks[2]; /* likewise: not freed yet */
} fault_transfers;

/* helpers: of the copier */
bool fault_transfers_open(fault_transfers *t, const char *device, uint32_t n_helpers);
void fault_transfers_play(fault_transfers *t);
/* Ends the world: all well, or on a lost device. */
void fault_transfers_close(fault_transfers *t);
void fault_transfers_bury(fault_transfers *t);

#endif
