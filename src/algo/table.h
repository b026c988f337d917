/* SPDX-License-Identifier: MIT
 *
 * A table from numbers to numbers: open addressing, no tombstones. Zeroed is empty. Removing and
 * finding never allocate. Knows nothing about what the numbers mean; no locks. */
#ifndef TARNI_TABLE_H
#define TARNI_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#define TARNI_TABLE_NONE UINT32_MAX

typedef struct tarni_table_slot {
  uint64_t key;
  uint32_t value; /* TARNI_TABLE_NONE: the slot is empty */
} tarni_table_slot;

typedef struct tarni_table {
  tarni_table_slot *slots;
  uint32_t capacity; /* 0, or a power of two that is at least a third more than n */
  uint32_t n;
} tarni_table;

/* The value of a key; TARNI_TABLE_NONE: it has none. */
uint32_t tarni_table_find(const tarni_table *table, uint64_t key);

/* Makes room for one more key. False: no host memory, and nothing has changed. */
bool tarni_table_room(tarni_table *table);

/* Sets the value of a new key. pre: there is room, the key has no value, and value is one. */
void tarni_table_put(tarni_table *table, uint64_t key, uint32_t value);

/* Forgets a key. pre: it has a value. */
void tarni_table_remove(tarni_table *table, uint64_t key);

void tarni_table_clear(tarni_table *table);

#endif
