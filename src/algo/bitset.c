/* SPDX-License-Identifier: MIT */
#include "algo/bitset.h"

#include <stdlib.h>

#include "base/bits.h"

static uint64_t words_for(uint64_t n_bits) {
  return n_bits / 64 + 1;
}

bool tarni_bitset_open(tarni_bitset *set, uint64_t n) {
  const uint64_t n_words = words_for(n);
  set->words = calloc(n_words + words_for(n_words), sizeof(*set->words));
  set->groups = set->words != NULL ? set->words + n_words : NULL;
  set->n_words = n_words;
  set->n_groups = words_for(n_words);
  return set->words != NULL;
}

void tarni_bitset_close(tarni_bitset *set) {
  free(set->words);
  *set = (tarni_bitset){0};
}

void tarni_bitset_add(tarni_bitset *set, uint64_t i) {
  const uint64_t word = i / 64;
  set->words[word] |= (uint64_t)1 << i % 64;
  set->groups[word / 64] |= (uint64_t)1 << word % 64;
}

void tarni_bitset_remove(tarni_bitset *set, uint64_t i) {
  const uint64_t word = i / 64;
  set->words[word] &= ~((uint64_t)1 << i % 64);
  if (set->words[word] == 0) {
    set->groups[word / 64] &= ~((uint64_t)1 << word % 64);
  }
}

bool tarni_bitset_has(const tarni_bitset *set, uint64_t i) {
  return (set->words[i / 64] >> i % 64 & 1) != 0;
}

/* The bits of a word below one of its bits. */
static uint64_t bits_below(uint64_t word, uint64_t bit) {
  return word & (((uint64_t)1 << bit) - 1);
}

uint64_t tarni_bitset_below(const tarni_bitset *set, uint64_t limit) {
  const uint64_t word = limit / 64;
  const uint64_t bits = bits_below(set->words[word], limit % 64);
  if (bits != 0) {
    return word * 64 + tarni_log2(bits);
  }
  uint64_t group = word / 64;
  uint64_t words = bits_below(set->groups[group], word % 64);
  while (words == 0 && group != 0) {
    words = set->groups[--group];
  }
  if (words == 0) {
    return TARNI_BITSET_NONE;
  }
  const uint64_t found = group * 64 + tarni_log2(words);
  return found * 64 + tarni_log2(set->words[found]);
}

/* The bits of a word from one of its bits on; of 64 there are none. */
static uint64_t bits_from(uint64_t word, uint64_t bit) {
  return bit < 64 ? word & (UINT64_MAX << bit) : 0;
}

uint64_t tarni_bitset_from(const tarni_bitset *set, uint64_t start) {
  const uint64_t word = start / 64;
  const uint64_t bits = bits_from(set->words[word], start % 64);
  if (bits != 0) {
    return word * 64 + tarni_low_bit(bits);
  }
  uint64_t group = word / 64;
  uint64_t words = bits_from(set->groups[group], word % 64 + 1);
  while (words == 0 && group + 1 < set->n_groups) {
    words = set->groups[++group];
  }
  if (words == 0) {
    return TARNI_BITSET_NONE;
  }
  const uint64_t found = group * 64 + tarni_low_bit(words);
  return found * 64 + tarni_low_bit(set->words[found]);
}

/* The lowest number from a member on that is none. */
static uint64_t end_of_run(const tarni_bitset *set, uint64_t start) {
  uint64_t word = start / 64;
  uint64_t others = bits_from(~set->words[word], start % 64);
  while (others == 0) {
    others = ~set->words[++word];
  }
  return word * 64 + tarni_low_bit(others);
}

uint64_t tarni_bitset_gap(const tarni_bitset *set, uint64_t start, uint64_t length) {
  for (;;) {
    const uint64_t member = tarni_bitset_from(set, start);
    if (member - start >= length) { /* none: it is far away */
      return start;
    }
    start = end_of_run(set, member);
  }
}

/* Goes through a word behind a run of *n members that ends where the word begins. Returns the bit
 * behind a run that is long enough, and *n is its length; else 64, and *n is that of the run that
 * ends with the word. */
static uint64_t end_of_length(uint64_t bits, uint64_t length, uint64_t *n) {
  for (uint64_t at = 0; at < 64;) {
    const uint64_t others = bits_from(~bits, at);
    const uint64_t end = others != 0 ? tarni_low_bit(others) : 64;
    *n += end - at;
    if (*n >= length || end == 64) {
      return end;
    }
    const uint64_t more = bits_from(bits, end);
    at = more != 0 ? tarni_low_bit(more) : 64;
    *n = 0;
  }
  return 64;
}

uint64_t tarni_bitset_run(const tarni_bitset *in, const tarni_bitset *out, uint64_t start,
                          uint64_t length) {
  uint64_t n = 0;
  for (uint64_t word = start / 64; word < in->n_words; word++) {
    if (in->groups[word / 64] == 0) {
      word |= 63; /* the last of a group without any */
      n = 0;
      continue;
    }
    const uint64_t bits = in->words[word] & ~out->words[word];
    const uint64_t end =
        end_of_length(bits_from(bits, word == start / 64 ? start % 64 : 0), length, &n);
    if (n >= length) {
      return word * 64 + end - n;
    }
  }
  return TARNI_BITSET_NONE;
}
