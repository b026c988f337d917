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

void tarni_bitset_fill(tarni_bitset *set, uint64_t start, uint64_t length, bool is) {
  while (length != 0) {
    const uint64_t word = start / 64, bit = start % 64;
    const uint64_t n = tarni_min(length, 64 - bit);
    const uint64_t mask = (n == 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1) << bit;
    const uint64_t group = (uint64_t)1 << word % 64;
    set->words[word] = is ? set->words[word] | mask : set->words[word] & ~mask;
    set->groups[word / 64] =
        set->words[word] != 0 ? set->groups[word / 64] | group : set->groups[word / 64] & ~group;
    start += n;
    length -= n;
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

/* Where in a word so many bits in a row begin, at most 64. */
static uint64_t begins_of(uint64_t bits, uint64_t length) {
  for (uint64_t n = 1; n < length && bits != 0;) {
    const uint64_t more = tarni_min(n, length - n);
    bits &= bits >> more;
    n += more;
  }
  return bits;
}

/* Goes on with the next word behind a run of *n numbers. Whether it has a long enough one: then *at
 * is where that begins, from the word's beginning, and below 0 by what lies in the words before. */
static bool run_goes_on(uint64_t bits, uint64_t length, uint64_t *n, int64_t *at) {
  const uint64_t n_first = ~bits != 0 ? tarni_low_bit(~bits) : 64;
  if (*n + n_first >= length) {
    *at = -(int64_t)*n;
    return true;
  }
  const uint64_t begins = length <= 64 ? begins_of(bits, length) : 0;
  if (begins != 0) {
    *at = (int64_t)tarni_low_bit(begins);
    return true;
  }
  *n = n_first == 64 ? *n + 64 : 63 - tarni_log2(~bits);
  return false;
}

uint64_t tarni_bitset_gap(const tarni_bitset *set, uint64_t start, uint64_t length) {
  uint64_t n = 0;
  int64_t at;
  for (uint64_t word = start / 64; word < set->n_words; word++) {
    const uint64_t bits = bits_from(~set->words[word], word == start / 64 ? start % 64 : 0);
    if (bits == 0) {
      n = 0;
    } else if (run_goes_on(bits, length, &n, &at)) {
      return word * 64 + (uint64_t)at;
    }
  }
  return set->n_words * 64 - n;
}

uint64_t tarni_bitset_run(const tarni_bitset *in, const tarni_bitset *out, uint64_t start,
                          uint64_t length) {
  uint64_t n = 0;
  int64_t at;
  for (uint64_t word = start / 64; word < in->n_words; word++) {
    const uint64_t words = bits_from(in->groups[word / 64], word % 64);
    if (words == 0) {
      word |= 63; /* the last of a group without any more */
      n = 0;
      continue;
    }
    if (tarni_low_bit(words) != word % 64) { /* those before it have none */
      word = tarni_align_down(word, 64) + tarni_low_bit(words);
      n = 0;
    }
    const uint64_t bits =
        bits_from(in->words[word] & ~out->words[word], word == start / 64 ? start % 64 : 0);
    if (bits == 0) {
      n = 0;
    } else if (run_goes_on(bits, length, &n, &at)) {
      return word * 64 + (uint64_t)at;
    }
  }
  return TARNI_BITSET_NONE;
}
