/* SPDX-License-Identifier: MIT
 *
 * Numbers and byte sizes as text. Parsing takes the whole text or nothing: a sign, a space, a
 * fraction, an unknown unit or a number that does not fit is refused, and the output untouched.
 * Knows nothing about memory; allocates nothing; depends on no locale. */
#ifndef TARNI_TEXT_H
#define TARNI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for any number that this file prints. */
enum { TARNI_TEXT_NUMBER = 32 };

/* Decimal digits: "0", "4096". */
bool tarni_text_to_number(const char *text, uint64_t *number);

/* Decimal digits and a unit, in either case: none or B, K, M, G, T, P, each also as KB and KiB.
 * Units are powers of 1024 however they are written. */
bool tarni_text_to_bytes(const char *text, uint64_t *bytes);

/* Writes the number with the largest unit that divides it, so that tarni_text_to_bytes gives the
 * same number back: "80G", "1536K", "4097", "0". Returns the buffer. */
char *tarni_text_from_bytes(uint64_t bytes, char buffer[TARNI_TEXT_NUMBER]);

#endif
