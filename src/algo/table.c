/* SPDX-License-Identifier: MIT
 *
 * A table from numbers to numbers. Linear probing; removing moves what follows back to where a
 * search finds it, so that a table never fills up with what is gone. */
#include "algo/table.h"

#include <stdlib.h>

#include "base/check.h"

enum { TABLE_FIRST = 64 };

static uint32_t slot_of(const tarni_table *table, uint64_t key) {
  const uint64_t mixed = (key ^ key >> 29) * UINT64_C(0x9e3779b97f4a7c15);
  return (uint32_t)(mixed >> 32) & (table->capacity - 1);
}

/* Where the key is, or where it would go. pre: the table has slots. */
static uint32_t slot_find(const tarni_table *table, uint64_t key) {
  uint32_t at = slot_of(table, key);
  while (table->slots[at].value != TARNI_TABLE_NONE && table->slots[at].key != key) {
    at = (at + 1) & (table->capacity - 1);
  }
  return at;
}

uint32_t tarni_table_find(const tarni_table *table, uint64_t key) {
  return table->capacity != 0 ? table->slots[slot_find(table, key)].value : TARNI_TABLE_NONE;
}

bool tarni_table_room(tarni_table *table) {
  if (table->n < table->capacity / 4 * 3) {
    return true;
  }
  if (table->capacity > UINT32_MAX / 4) {
    return false;
  }
  tarni_table wide = {.capacity = table->capacity != 0 ? table->capacity * 2 : TABLE_FIRST};
  wide.slots = malloc(wide.capacity * sizeof(*wide.slots));
  if (wide.slots == NULL) {
    return false;
  }
  for (uint32_t i = 0; i < wide.capacity; i++) {
    wide.slots[i].value = TARNI_TABLE_NONE;
  }
  for (uint32_t i = 0; i < table->capacity; i++) {
    if (table->slots[i].value != TARNI_TABLE_NONE) {
      wide.slots[slot_find(&wide, table->slots[i].key)] = table->slots[i];
    }
  }
  wide.n = table->n;
  free(table->slots);
  *table = wide;
  return true;
}

void tarni_table_put(tarni_table *table, uint64_t key, uint32_t value) {
  tarn_assert(table->n < table->capacity && value != TARNI_TABLE_NONE);
  const uint32_t at = slot_find(table, key);
  tarn_assert(table->slots[at].value == TARNI_TABLE_NONE);
  table->slots[at] = (tarni_table_slot){.key = key, .value = value};
  table->n++;
}

void tarni_table_remove(tarni_table *table, uint64_t key) {
  const uint32_t mask = table->capacity - 1;
  uint32_t hole = slot_find(table, key);
  tarn_assert(table->slots[hole].value != TARNI_TABLE_NONE);
  table->slots[hole].value = TARNI_TABLE_NONE;
  table->n--;
  for (uint32_t at = (hole + 1) & mask; table->slots[at].value != TARNI_TABLE_NONE;
       at = (at + 1) & mask) {
    /* It may go into the hole unless its own place lies behind the hole. */
    const uint32_t home = slot_of(table, table->slots[at].key);
    if (((at - home) & mask) >= ((at - hole) & mask)) {
      table->slots[hole] = table->slots[at];
      table->slots[at].value = TARNI_TABLE_NONE;
      hole = at;
    }
  }
}

void tarni_table_clear(tarni_table *table) {
  free(table->slots);
  *table = (tarni_table){0};
}
