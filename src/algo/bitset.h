/* SPDX-License-Identifier: MIT
 *
 * A set of numbers below a fixed bound, asked for its members from the highest down or from the
 * lowest up. Adding, removing and asking never allocate. Knows nothing about what the numbers mean;
 * no locks. */
#ifndef TARNI_BITSET_H
#define TARNI_BITSET_H

#include <stdbool.h>
#include <stdint.h>

#define TARNI_BITSET_NONE UINT64_MAX

typedef struct tarni_bitset {
  uint64_t *words;  /* a bit for each number */
  uint64_t *groups; /* a bit for each word that is not 0; behind the words */
  uint64_t n_words, n_groups;
} tarni_bitset;

/* An empty set of numbers below n. False: no host memory. */
bool tarni_bitset_open(tarni_bitset *set, uint64_t n);
void tarni_bitset_close(tarni_bitset *set);

void tarni_bitset_add(tarni_bitset *set, uint64_t i);
void tarni_bitset_remove(tarni_bitset *set, uint64_t i);
/* Adds or removes so many numbers from a start on. */
void tarni_bitset_fill(tarni_bitset *set, uint64_t start, uint64_t length, bool is);
bool tarni_bitset_has(const tarni_bitset *set, uint64_t i);

/* The highest member below the limit, which is at most n; TARNI_BITSET_NONE: there is none. */
uint64_t tarni_bitset_below(const tarni_bitset *set, uint64_t limit);
/* The lowest member at the start, which is at most n, or above it; likewise. */
uint64_t tarni_bitset_from(const tarni_bitset *set, uint64_t start);
/* The first of so many numbers in a row, at least one, that are no members, the lowest from the
 * start on, which is at most n. Numbers from n on are no members, so there is always one. */
uint64_t tarni_bitset_gap(const tarni_bitset *set, uint64_t start, uint64_t length);
/* The same for members of one set that are not of another, which is as large; TARNI_BITSET_NONE:
 * there is none. */
uint64_t tarni_bitset_run(const tarni_bitset *in, const tarni_bitset *out, uint64_t start,
                          uint64_t length);

#endif
