/* SPDX-License-Identifier: MIT
 *
 * Options: environment variables TARN_*, one table, read once. A bad value and a TARN_* variable
 * that the table does not know are errors for every call that needs options; neither is ever
 * ignored. Knows nothing about what the options mean. */
#ifndef TARNI_OPTION_H
#define TARNI_OPTION_H

#include "tarn/tarn.h"

/* The table: identifier (its variable is TARN_<identifier>), kind, default as it would be written
 * in the environment, least and greatest number (bytes and integers), choices joined by '|'
 * (choices only), help. A new option is one more line. */
#define TARNI_OPTION_MAP(X)                                                                        \
  X(DEVICE, TEXT, "", 0, 0, "",                                                                    \
    "The device that is opened where a program names none: \"cuda:0\", \"sim\", "                  \
    "\"sim:80G,seed=7\". Empty: the first GPU, else the simulated one.")                           \
  X(PRESET, CHOICE, "none", 0, 0, "none|power-buckets|exact-pool",                                 \
    "Defaults of heaps: power-buckets is plain memory in powers of two, of which 256M are kept; "  \
    "exact-pool is a private pool with a threshold of 512M, exact sizes, 1G and 64 a size kept.")  \
  X(BACKING, CHOICE, "vmm", 0, 0, "vmm|pool|plain",                                                \
    "Where a heap's memory comes from, unless its program says so: mapped chunks, a private "      \
    "pool of the driver, or plain allocations. Unset: what the preset says.")                      \
  X(ROUNDING, CHOICE, "classes", 0, 0, "classes|exact|power-of-two",                               \
    "What requests are rounded up to, unless the program says so. Unset: what the preset says.")   \
  X(CACHED_LIMIT, BYTES, "1G", 0, UINT64_C(1) << 60, "",                                           \
    "Most bytes of freed blocks that a heap of driver allocations keeps; 0 keeps none. Unset: "    \
    "what the preset says, else 1G.")                                                              \
  X(CACHED_BLOCKS, INTEGER, "4294967295", 0, UINT32_MAX, "",                                       \
    "Most freed blocks of one size that a heap of driver allocations keeps; 0 keeps none. Unset: " \
    "what the preset says, else no limit.")                                                        \
  X(POOL_THRESHOLD, BYTES, "0", 0, UINT64_C(1) << 60, "",                                          \
    "Idle bytes that the driver's pool behind a heap may hold. Unset: what the preset says.")      \
  X(LIVE_LIMIT, BYTES, "1024P", 0, UINT64_C(1) << 60, "",                                          \
    "Most bytes in live blocks of a heap of driver allocations. Unset: no limit.")                 \
  X(DETERMINISTIC, SWITCH, "off", 0, 0, "",                                                        \
    "The same calls of one thread give blocks at the same distance from the heap's first "         \
    "address, whatever the timing.")                                                               \
  X(VERIFY_STREAMS, SWITCH, "off", 0, 0, "",                                                       \
    "Every call asks the driver which stream a handle means, so that one that was destroyed, not " \
    "retired, and made again is noticed.")                                                         \
  X(ASK_CAPTURES, SWITCH, "off", 0, 0, "",                                                         \
    "Every allocation asks the driver whether its stream is being captured, for programs that "    \
    "capture and do not tell.")                                                                    \
  X(SECURE, SWITCH, "off", 0, 0, "",                                                               \
    "Blocks are filled with zeros when they are allocated and when they are freed, so that no "    \
    "content reaches another owner.")                                                              \
  X(FILL_ALLOC, INTEGER, "0", 0, 255, "",                                                          \
    "Blocks are filled with this byte when they are allocated; 0: they are not.")                  \
  X(FILL_FREE, INTEGER, "0", 0, 255, "",                                                           \
    "Blocks are filled with this byte when they are freed; 0: they are not.")                      \
  X(GUARD, BYTES, "0", 0, 1 << 20, "",                                                             \
    "Bytes behind each block that are looked at when it is freed; 0: none.")                       \
  X(QUARANTINE, BYTES, "0", 0, UINT64_C(1) << 60, "",                                              \
    "Freed blocks of so many bytes are kept out of use, to find who still writes to them; 0: "     \
    "none.")                                                                                       \
  X(STACK_DEPTH, INTEGER, "0", 0, 32, "",                                                          \
    "Return addresses kept for each block, for errors and reports of leaks; 0: none.")

/* Variables that begin like this belong to tests, and are not taken for misspelt options. */
#define TARNI_OPTION_TEST_PREFIX "TARN_TEST_"

typedef enum tarni_option_kind {
  TARNI_KIND_TEXT,
  TARNI_KIND_BYTES,   /* number: the bytes */
  TARNI_KIND_INTEGER, /* number: itself */
  TARNI_KIND_SWITCH,  /* number: 0 for off, 1 for on */
  TARNI_KIND_CHOICE,  /* number: the index of the choice */
} tarni_option_kind;

typedef enum tarni_option_id {
#define TARNI_OPTION_ENUM(id, kind, default_value, minimum, maximum, choices, help)                \
  TARNI_OPTION_##id,
  TARNI_OPTION_MAP(TARNI_OPTION_ENUM)
#undef TARNI_OPTION_ENUM
      TARNI_OPTION_COUNT
} tarni_option_id;

typedef struct tarni_option_spec {
  const char *name; /* "TARN_DEVICE" */
  tarni_option_kind kind;
  const char *default_value;
  uint64_t minimum;
  uint64_t maximum;
  const char *choices;
  const char *help;
} tarni_option_spec;

enum { TARNI_OPTION_CAPACITY = 1024, TARNI_OPTION_RANGE_CAPACITY = 160 };

typedef struct tarni_option_value {
  uint64_t number; /* by kind, see above; 0 for a text */
  bool is_set;     /* it came from the environment */
  char text[TARNI_OPTION_CAPACITY];
} tarni_option_value;

/* The values in force, an array indexed by tarni_option_id, valid for the life of the process.
 * TARN_OPTION, and *values NULL, when the environment has a bad value or an unknown TARN_*. */
tarn_status tarni_options(const tarni_option_value **values);

/* Parses one value. TARN_OPTION when it is bad; the message names variable, value and range. */
tarn_status tarni_option_parse(const tarni_option_spec *spec, const char *text,
                               tarni_option_value *value);

/* Fills values[0..count) from an environment as in `environ` (NAME=value, ends in NULL), and from
 * the defaults. The first thing wrong is what the error tells. */
tarn_status tarni_option_read(const tarni_option_spec *specs, size_t count,
                              char *const *environment, tarni_option_value *values);

/* "64K to 1T", "on or off", "one of a, b, c", "any text". Returns the buffer. */
char *tarni_option_range(const tarni_option_spec *spec, char buffer[TARNI_OPTION_RANGE_CAPACITY]);

#endif
