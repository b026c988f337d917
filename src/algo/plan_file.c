/* SPDX-License-Identifier: MIT
 *
 * Problems and plans as text: the reader of tables, the fingerprint of a problem, and plans saved
 * and loaded. Readers survive any bytes and name the line that they refuse. Knows no files: text
 * in, text out. No locks. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/plan_scene.h"

/* ---- A cursor over lines -------------------------------------------------------------------- */

typedef struct text_cursor {
  const char *at;
  const char *end;
  uint64_t line; /* the number of the line that `field` walks */
  const char *field;
  const char *line_end;
} text_cursor;

/* Moves to the next line; false at the end of the text. A carriage return at its end is dropped. */
static bool next_line(text_cursor *cursor) {
  if (cursor->at >= cursor->end) {
    return false;
  }
  const char *newline = memchr(cursor->at, '\n', (size_t)(cursor->end - cursor->at));
  cursor->field = cursor->at;
  cursor->line_end = newline == NULL ? cursor->end : newline;
  cursor->at = newline == NULL ? cursor->end : newline + 1;
  if (cursor->line_end > cursor->field && cursor->line_end[-1] == '\r') {
    cursor->line_end--;
  }
  cursor->line++;
  return true;
}

/* The next field of the line, without blanks around it; false when there is none. */
static bool next_field(text_cursor *cursor, char separator, const char **field, size_t *length) {
  if (cursor->field == NULL) {
    return false;
  }
  const char *begin = cursor->field;
  const char *stop = memchr(begin, separator, (size_t)(cursor->line_end - begin));
  const char *end = stop == NULL ? cursor->line_end : stop;
  cursor->field = stop == NULL ? NULL : stop + 1;
  while (begin < end && (*begin == ' ' || *begin == '\t')) {
    begin++;
  }
  while (begin < end && (end[-1] == ' ' || end[-1] == '\t')) {
    end--;
  }
  *field = begin;
  *length = (size_t)(end - begin);
  return true;
}

/* A decimal or, with base 16, hexadecimal number: nothing else in the field, no overflow. */
static bool read_number(const char *field, size_t length, unsigned base, uint64_t *number) {
  uint64_t value = 0;
  for (size_t i = 0; i < length; i++) {
    const char c = field[i];
    unsigned digit = 16;
    if (c >= '0' && c <= '9') {
      digit = (unsigned)(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = (unsigned)(c - 'a') + 10;
    }
    if (digit >= base || !tarni_mul(value, base, &value) || !tarni_add(value, digit, &value)) {
      return false;
    }
  }
  *number = value;
  return length != 0;
}

/* ---- Tables --------------------------------------------------------------------------------- */

typedef enum table_column {
  COLUMN_ID,
  COLUMN_LOWER,
  COLUMN_UPPER,
  COLUMN_SIZE,
  COLUMN_ALIGNMENT,
  COLUMN_COUNT
} table_column;

static const char *const column_names[COLUMN_COUNT] = {"id", "lower", "upper", "size", "alignment"};

enum { TABLE_MAX_FIELDS = 16 };

typedef struct table_layout {
  table_column columns[TABLE_MAX_FIELDS];
  size_t count;
} table_layout;

static tarn_status fail_line(const text_cursor *cursor, const char *why) {
  return tarni_fail(TARN_INVALID, "plan_read", NULL,
                    "A table has a first line with id,lower,upper,size and whole numbers below it.",
                    "line %" PRIu64 " %s", cursor->line, why);
}

static tarn_status read_layout(text_cursor *cursor, table_layout *layout) {
  const char *field = NULL;
  size_t length = 0;
  unsigned seen = 0;
  if (!next_line(cursor)) {
    cursor->line = 1;
    return fail_line(cursor, "is missing: the text is empty");
  }
  while (next_field(cursor, ',', &field, &length)) {
    unsigned column = 0;
    while (column < COLUMN_COUNT && (strlen(column_names[column]) != length ||
                                     memcmp(column_names[column], field, length) != 0)) {
      column++;
    }
    if (column == COLUMN_COUNT || (seen >> column & 1) != 0 || layout->count == TABLE_MAX_FIELDS) {
      return fail_line(cursor, "names a column that is not known, or one twice");
    }
    seen |= 1u << column;
    layout->columns[layout->count++] = (table_column)column;
  }
  const unsigned needed = 1u << COLUMN_LOWER | 1u << COLUMN_UPPER | 1u << COLUMN_SIZE;
  return (seen & needed) == needed ? TARN_OK
                                   : fail_line(cursor, "does not name lower, upper and size");
}

static tarn_status read_row(text_cursor *cursor, const table_layout *layout,
                            tarni_plan_buffer *buffer, uint64_t *id) {
  uint64_t values[COLUMN_COUNT] = {[COLUMN_ID] = *id};
  const char *field = NULL;
  size_t length = 0;
  for (size_t i = 0; i < layout->count; i++) {
    if (!next_field(cursor, ',', &field, &length)) {
      return fail_line(cursor, "has too few fields");
    }
    if (!read_number(field, length, 10, &values[layout->columns[i]])) {
      return fail_line(cursor, "has a field that is not a whole number below 2^64");
    }
  }
  if (cursor->field != NULL) {
    return fail_line(cursor, "has too many fields");
  }
  if (values[COLUMN_UPPER] < values[COLUMN_LOWER]) {
    return fail_line(cursor, "has a lifetime that ends before it begins");
  }
  *id = values[COLUMN_ID];
  *buffer = (tarni_plan_buffer){.bytes = values[COLUMN_SIZE],
                                .begin = values[COLUMN_LOWER],
                                .end = values[COLUMN_UPPER],
                                .alignment = values[COLUMN_ALIGNMENT]};
  return TARN_OK;
}

static bool table_grow(tarni_plan_table *table, size_t *capacity) {
  const size_t larger = *capacity == 0 ? 256 : 2 * *capacity;
  tarni_plan_buffer *buffers = realloc(table->buffers, larger * sizeof(*buffers));
  if (buffers != NULL) {
    table->buffers = buffers;
  }
  uint64_t *ids = realloc(table->ids, larger * sizeof(*ids));
  if (ids != NULL) {
    table->ids = ids;
  }
  *capacity = buffers != NULL && ids != NULL ? larger : *capacity;
  return *capacity == larger;
}

static tarn_status read_rows(text_cursor *cursor, const table_layout *layout,
                             tarni_plan_table *table) {
  size_t capacity = 0;
  while (next_line(cursor)) {
    if (cursor->field == cursor->line_end) {
      continue; /* an empty line */
    }
    if (table->count == UINT32_MAX || (table->count == capacity && !table_grow(table, &capacity))) {
      return tarni_fail(TARN_HOST_MEMORY, "plan_read", NULL, "Free host memory.",
                        "no memory for more than %u buffers", table->count);
    }
    table->ids[table->count] = table->count;
    TARN_TRY(read_row(cursor, layout, &table->buffers[table->count], &table->ids[table->count]));
    table->count++;
  }
  return TARN_OK;
}

tarn_status tarni_plan_read(const char *text, size_t length, tarni_plan_table *table) {
  text_cursor cursor = {.at = text, .end = text + length};
  table_layout layout = {.count = 0};
  *table = (tarni_plan_table){0};
  tarn_status status = read_layout(&cursor, &layout);
  if (status == TARN_OK) {
    status = read_rows(&cursor, &layout, table);
  }
  if (status != TARN_OK) {
    tarni_plan_table_release(table);
  }
  return status;
}

void tarni_plan_table_release(tarni_plan_table *table) {
  free(table->buffers);
  free(table->ids);
  *table = (tarni_plan_table){0};
}

/* ---- The fingerprint ------------------------------------------------------------------------ */

/* FNV-1a over the bytes of a number, so that it does not depend on the byte order. */
static uint64_t mix(uint64_t hash, uint64_t number) {
  for (int i = 0; i < 8; i++) {
    hash = (hash ^ (number >> (8 * i) & 0xff)) * UINT64_C(0x100000001b3);
  }
  return hash;
}

static const uint64_t mix_start = UINT64_C(0xcbf29ce484222325);

uint64_t tarni_plan_fingerprint(const tarni_plan_problem *problem) {
  uint64_t hash = mix(mix_start, problem->count);
  for (uint32_t i = 0; i < problem->count; i++) {
    const tarni_plan_buffer *buffer = &problem->buffers[i];
    hash = mix(mix(hash, buffer->bytes), buffer->alignment == 0 ? 1 : buffer->alignment);
    if (problem->order == NULL) {
      hash = mix(mix(hash, buffer->begin), buffer->end);
      continue;
    }
    hash = mix(hash, UINT64_MAX);
    for (uint32_t k = problem->order->starts[i]; k < problem->order->starts[i + 1]; k++) {
      hash = mix(hash, problem->order->predecessors[k]);
    }
  }
  return hash;
}

/* ---- Plans ---------------------------------------------------------------------------------- */

/* The lines of a saved plan, in order; offsets follow, and a checksum of all numbers ends it. */
enum {
  PLAN_PROBLEM,
  PLAN_COUNT,
  PLAN_HEIGHT,
  PLAN_BOUND,
  PLAN_BINDS_FROM,
  PLAN_BINDS_TO,
  PLAN_PROVEN,
  PLAN_STEPS,
  PLAN_NUMBERS
};

static const char *const plan_names[PLAN_NUMBERS] = {"problem",    "count",    "height", "bound",
                                                     "binds_from", "binds_to", "proven", "steps"};

static const char plan_title[] = "tarn plan 1";

tarn_status tarni_plan_save(const tarni_plan *plan, uint64_t fingerprint, char **text,
                            size_t *length) {
  const uint64_t numbers[PLAN_NUMBERS] = {fingerprint,     plan->count,      plan->height,
                                          plan->bound,     plan->bind_begin, plan->bind_end,
                                          plan->is_proven, plan->steps};
  uint64_t hash = mix_start;
  *text = NULL;
  *length = 0;
  FILE *file = open_memstream(text, length);
  if (file == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "plan_save", NULL, "Free host memory.",
                      "no memory for the text of a plan");
  }
  int result = fprintf(file, "%s\n", plan_title);
  for (int i = 0; i < PLAN_NUMBERS && result >= 0; i++) {
    hash = mix(hash, numbers[i]);
    result = fprintf(file, i == PLAN_PROBLEM ? "%s %" PRIx64 "\n" : "%s %" PRIu64 "\n",
                     plan_names[i], numbers[i]);
  }
  for (uint32_t i = 0; i < plan->count && result >= 0; i++) {
    hash = mix(hash, plan->offsets[i]);
    result = fprintf(file, "%" PRIu64 "\n", plan->offsets[i]);
  }
  result = result < 0 ? result : fprintf(file, "end %" PRIx64 "\n", hash);
  if (fclose(file) != 0 || result < 0) {
    free(*text);
    *text = NULL;
    *length = 0;
    return tarni_fail(TARN_HOST_MEMORY, "plan_save", NULL, "Free host memory.",
                      "no memory for a plan of %u buffers", plan->count);
  }
  return TARN_OK;
}

static tarn_status fail_load(const text_cursor *cursor, const char *why) {
  return tarni_fail(TARN_CORRUPT, "plan_load", NULL, "Make the plan again.", "line %" PRIu64 " %s",
                    cursor->line, why);
}

/* Reads "name number"; an empty name is a number alone. */
static bool read_named(text_cursor *cursor, const char *name, unsigned base, uint64_t *number) {
  const char *field = NULL;
  size_t length = 0;
  if (!next_line(cursor)) {
    cursor->line++;
    return false;
  }
  if (name[0] != '\0' && (!next_field(cursor, ' ', &field, &length) || length != strlen(name) ||
                          memcmp(field, name, length) != 0)) {
    return false;
  }
  return next_field(cursor, ' ', &field, &length) && cursor->field == NULL &&
         read_number(field, length, base, number);
}

static tarn_status load_numbers(text_cursor *cursor, const tarni_plan_problem *problem,
                                uint64_t numbers[PLAN_NUMBERS], uint64_t *hash) {
  if (!next_line(cursor) || (size_t)(cursor->line_end - cursor->field) != strlen(plan_title) ||
      memcmp(cursor->field, plan_title, strlen(plan_title)) != 0) {
    cursor->line = 1;
    return fail_load(cursor, "is not the title of a plan that this version knows");
  }
  for (int i = 0; i < PLAN_NUMBERS; i++) {
    if (!read_named(cursor, plan_names[i], i == PLAN_PROBLEM ? 16 : 10, &numbers[i])) {
      return fail_load(cursor, "is damaged");
    }
    *hash = mix(*hash, numbers[i]);
  }
  const uint64_t fingerprint = tarni_plan_fingerprint(problem);
  if (numbers[PLAN_PROBLEM] != fingerprint || numbers[PLAN_COUNT] != problem->count) {
    return tarni_fail(TARN_STATE, "plan_load", NULL, "Make a plan for this problem.",
                      "the plan is for problem %" PRIx64 " of %" PRIu64
                      " buffers, this one is %" PRIx64 " of %u",
                      numbers[PLAN_PROBLEM], numbers[PLAN_COUNT], fingerprint, problem->count);
  }
  return TARN_OK;
}

static tarn_status load_offsets(text_cursor *cursor, uint64_t *hash, tarni_plan *plan) {
  uint64_t checksum = 0;
  for (uint32_t i = 0; i < plan->count; i++) {
    if (!read_named(cursor, "", 10, &plan->offsets[i])) {
      return fail_load(cursor, "is damaged: an offset was expected");
    }
    *hash = mix(*hash, plan->offsets[i]);
  }
  if (!read_named(cursor, "end", 16, &checksum) || checksum != *hash || next_line(cursor)) {
    return fail_load(cursor, "is damaged: the checksum does not match or text follows it");
  }
  return TARN_OK;
}

tarn_status tarni_plan_load(const tarni_plan_problem *problem, const char *text, size_t length,
                            tarni_plan *plan) {
  text_cursor cursor = {.at = text, .end = text + length};
  uint64_t numbers[PLAN_NUMBERS] = {0};
  uint64_t hash = mix_start;
  uint64_t height = 0;
  *plan = (tarni_plan){0};
  TARN_TRY(load_numbers(&cursor, problem, numbers, &hash));
  *plan = (tarni_plan){.count = problem->count,
                       .height = numbers[PLAN_HEIGHT],
                       .bound = numbers[PLAN_BOUND],
                       .bind_begin = numbers[PLAN_BINDS_FROM],
                       .bind_end = numbers[PLAN_BINDS_TO],
                       .is_proven = numbers[PLAN_PROVEN] != 0,
                       .steps = numbers[PLAN_STEPS]};
  plan->offsets = calloc((size_t)problem->count + 1, sizeof(*plan->offsets));
  tarn_status status = TARN_OK;
  if (plan->offsets == NULL) {
    status = tarni_fail(TARN_HOST_MEMORY, "plan_load", NULL, "Free host memory.",
                        "no memory for the offsets of %u buffers", problem->count);
  }
  status = status != TARN_OK ? status : load_offsets(&cursor, &hash, plan);
  status = status != TARN_OK ? status : tarni_plan_check(problem, plan->offsets, &height);
  if (status == TARN_OK && height != plan->height) {
    status = fail_load(&cursor, "ends a plan whose height is not what it says");
  }
  if (status != TARN_OK) {
    tarni_plan_release(plan);
  }
  return status;
}
