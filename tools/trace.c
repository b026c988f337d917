/* SPDX-License-Identifier: MIT
 *
 * The reader of recorded programs: bytes are cut into lines, lines into fields, and every event is
 * checked against what is live at that point. Works on pieces of any size, so that a file is never
 * in memory as a whole. Compressed files are read by zlib, or, where tarn was built without it, by
 * a gzip process. No locks: a reader belongs to one thread. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace.h"

#ifndef TARN_HAVE_ZLIB
#define TARN_HAVE_ZLIB 0
#endif
#if TARN_HAVE_ZLIB
#include <zlib.h>
#else
#include <sys/wait.h>
#endif

enum { READ_BYTES = 1 << 16, FIRST_CAPACITY = 1024, MAX_FIELDS = 5 };

/* A live block by its ID: a hash table with open addressing. */
typedef struct live_block {
  uint64_t id;
  uint64_t bytes;
  uint32_t block;
  uint16_t stream;
  bool is_used;
} live_block;

typedef struct reader {
  const char *name;
  char *error;
  trace *out;
  size_t line; /* the present one; the first is 1; 0: nothing was read yet */
  char text[TRACE_MAX_LINE + 1];
  size_t length;   /* of the present line so far */
  bool is_comment; /* the rest of the line is skipped */
  size_t event_capacity;
  live_block *table;
  size_t table_capacity; /* a power of two, at most half full */
  uint32_t n_live;
  uint64_t live_bytes;
  uint64_t streams[TRACE_MAX_STREAMS];
} reader;

/* ---- Failing -------------------------------------------------------------------------------- */

/* Names the line, too, once one was read. */
__attribute__((format(printf, 2, 3))) static bool refuse(reader *r, const char *format, ...) {
  const int length = r->line != 0 ? snprintf(r->error, TRACE_ERROR, "%s:%zu: ", r->name, r->line)
                                  : snprintf(r->error, TRACE_ERROR, "%s: ", r->name);
  if (length > 0 && length < TRACE_ERROR) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(r->error + length, (size_t)(TRACE_ERROR - length), format, arguments);
    va_end(arguments);
  }
  return false;
}

static bool refuse_memory(reader *r) {
  return refuse(r, "out of host memory after %zu events; free some, or cut the trace",
                r->out->n_events);
}

/* ---- Live blocks ---------------------------------------------------------------------------- */

/* Every bit of an ID counts: they may be small numbers or addresses. */
static uint64_t mix_id(uint64_t id) {
  id = (id ^ id >> 32) * UINT64_C(0x9e3779b97f4a7c15);
  return id ^ id >> 29;
}

static size_t slot_of(const reader *r, uint64_t id) {
  const size_t mask = r->table_capacity - 1;
  size_t slot = (size_t)mix_id(id) & mask;
  while (r->table[slot].is_used && r->table[slot].id != id) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

static bool table_grow(reader *r) {
  live_block *old = r->table;
  const size_t old_capacity = r->table_capacity;
  const size_t capacity = old_capacity == 0 ? FIRST_CAPACITY : old_capacity * 2;
  live_block *table = calloc(capacity, sizeof(*table));
  if (table == NULL) {
    return refuse_memory(r);
  }
  r->table = table;
  r->table_capacity = capacity;
  for (size_t i = 0; i < old_capacity; i++) {
    if (old[i].is_used) {
      table[slot_of(r, old[i].id)] = old[i];
    }
  }
  free(old);
  return true;
}

/* Empties a slot, and moves up what had to step over it. */
static void table_remove(reader *r, size_t slot) {
  const size_t mask = r->table_capacity - 1;
  r->table[slot].is_used = false;
  for (size_t next = (slot + 1) & mask; r->table[next].is_used; next = (next + 1) & mask) {
    const live_block moved = r->table[next];
    r->table[next].is_used = false;
    r->table[slot_of(r, moved.id)] = moved;
  }
}

/* ---- Events --------------------------------------------------------------------------------- */

static bool add_event(reader *r, trace_event event) {
  trace *out = r->out;
  if (out->n_events == r->event_capacity) {
    const size_t capacity = r->event_capacity == 0 ? FIRST_CAPACITY : r->event_capacity * 2;
    trace_event *events = realloc(out->events, capacity * sizeof(*events));
    if (events == NULL) {
      return refuse_memory(r);
    }
    out->events = events;
    r->event_capacity = capacity;
  }
  out->events[out->n_events++] = event;
  return true;
}

/* The dense number of a stream. */
static bool find_stream(reader *r, uint64_t id, uint16_t *stream) {
  uint32_t i = 0;
  while (i < r->out->n_streams && r->streams[i] != id) {
    i++;
  }
  if (i == TRACE_MAX_STREAMS) {
    return refuse(r, "stream %llu is one too many: a trace may have %d", (unsigned long long)id,
                  (int)TRACE_MAX_STREAMS);
  }
  if (i == r->out->n_streams) {
    r->streams[r->out->n_streams++] = id;
  }
  *stream = (uint16_t)i;
  return true;
}

static bool allocate_block(reader *r, uint64_t id, uint64_t bytes, uint64_t stream_id) {
  trace *out = r->out;
  uint16_t stream = 0;
  if (bytes > TRACE_MAX_BYTES || r->live_bytes + bytes > TRACE_MAX_BYTES) {
    return refuse(r, "%llu bytes on top of %llu live ones are more than 2^50, which no device has",
                  (unsigned long long)bytes, (unsigned long long)r->live_bytes);
  }
  if (out->n_blocks == UINT32_MAX) {
    return refuse(r, "more than %u allocations: cut the trace", UINT32_MAX);
  }
  if (!find_stream(r, stream_id, &stream)) {
    return false;
  }
  if (2 * (size_t)(r->n_live + 1) > r->table_capacity && !table_grow(r)) {
    return false;
  }
  const size_t slot = slot_of(r, id);
  if (r->table[slot].is_used) {
    return refuse(r, "block %llu is allocated again before it is freed", (unsigned long long)id);
  }
  const trace_event event = {
      .bytes = bytes, .block = out->n_blocks, .stream = stream, .kind = TRACE_ALLOC};
  if (!add_event(r, event)) {
    return false;
  }
  r->table[slot] = (live_block){
      .id = id, .bytes = bytes, .block = out->n_blocks++, .stream = stream, .is_used = true};
  r->n_live++;
  r->live_bytes += bytes;
  if (r->live_bytes > out->live_peak_bytes) {
    out->live_peak_bytes = r->live_bytes;
  }
  if (r->n_live > out->live_peak_blocks) {
    out->live_peak_blocks = r->n_live;
  }
  return true;
}

static bool free_block(reader *r, uint64_t id) {
  const size_t slot = r->table_capacity > 0 ? slot_of(r, id) : 0;
  if (r->table_capacity == 0 || !r->table[slot].is_used) {
    return refuse(r, "block %llu is freed, but it is not allocated at this point",
                  (unsigned long long)id);
  }
  const live_block block = r->table[slot];
  table_remove(r, slot);
  r->n_live--;
  r->live_bytes -= block.bytes;
  return add_event(r, (trace_event){.bytes = block.bytes,
                                    .block = block.block,
                                    .stream = block.stream,
                                    .kind = TRACE_FREE});
}

/* ---- Lines ---------------------------------------------------------------------------------- */

static bool parse_number(const char *text, uint64_t *number) {
  uint64_t value = 0;
  if (*text == '\0') {
    return false;
  }
  for (; *text != '\0'; text++) {
    const unsigned digit = (unsigned)(unsigned char)*text - '0';
    if (digit > 9 || value > (UINT64_MAX - digit) / 10) {
      return false;
    }
    value = value * 10 + digit;
  }
  *number = value;
  return true;
}

/* Cuts the line at spaces; how many fields there are, MAX_FIELDS at most. */
static size_t cut_fields(char *text, char *fields[MAX_FIELDS]) {
  size_t n = 0;
  char *rest = NULL;
  for (char *field = strtok_r(text, " \t\r", &rest); field != NULL && n < MAX_FIELDS;
       field = strtok_r(NULL, " \t\r", &rest)) {
    fields[n++] = field;
  }
  return n;
}

static bool parse_numbers(reader *r, char *const fields[], size_t n, uint64_t numbers[]) {
  for (size_t i = 0; i < n; i++) {
    if (!parse_number(fields[i], &numbers[i])) {
      return refuse(r, "'%.40s' is not a number below 2^64", fields[i]);
    }
  }
  return true;
}

static bool take_line(reader *r) {
  char *fields[MAX_FIELDS];
  uint64_t numbers[MAX_FIELDS] = {0};
  if (memchr(r->text, '\0', r->length) != NULL) {
    return refuse(r, "a zero byte: this is not a text trace");
  }
  r->text[r->length] = '\0';
  const size_t n = cut_fields(r->text, fields);
  if (n == 0) {
    return true;
  }
  if (strcmp(fields[0], "a") == 0) {
    return n != 4 ? refuse(r, "an allocation is `a ID SIZE STREAM`")
                  : parse_numbers(r, fields + 1, 3, numbers) &&
                        allocate_block(r, numbers[0], numbers[1], numbers[2]);
  }
  if (strcmp(fields[0], "f") == 0) {
    return n != 2 ? refuse(r, "a free is `f ID`")
                  : parse_numbers(r, fields + 1, 1, numbers) && free_block(r, numbers[0]);
  }
  return refuse(r, "'%.40s' is no event; events begin with a or f", fields[0]);
}

static bool end_line(reader *r) {
  const bool is_good = take_line(r);
  r->length = 0;
  r->is_comment = false;
  r->line += is_good;
  return is_good;
}

static bool feed(reader *r, const char *bytes, size_t n) {
  r->line += r->line == 0;
  for (size_t i = 0; i < n; i++) {
    if (bytes[i] == '\n') {
      if (!end_line(r)) {
        return false;
      }
    } else if (bytes[i] == '#' || r->is_comment) {
      r->is_comment = true;
    } else if (r->length == TRACE_MAX_LINE) {
      return refuse(r, "the line is longer than %d bytes", (int)TRACE_MAX_LINE);
    } else {
      r->text[r->length++] = bytes[i];
    }
  }
  return true;
}

/* ---- Files ---------------------------------------------------------------------------------- */

#if TARN_HAVE_ZLIB
/* A file whose beginning is looked at before it is known what it is. */
typedef struct piece_reader {
  int file;
  size_t length; /* of what is in the buffer */
  unsigned char buffer[READ_BYTES];
} piece_reader;

/* The next piece behind what is in the buffer; false: it cannot be read. Nothing more: the end. */
static bool read_piece(reader *r, piece_reader *from) {
  ssize_t n;
  do {
    n = read(from->file, from->buffer + from->length, sizeof(from->buffer) - from->length);
  } while (n < 0 && errno == EINTR);
  from->length += n > 0 ? (size_t)n : 0;
  return n >= 0 || refuse(r, "cannot be read further: %s", strerror(errno));
}

static bool feed_plain(reader *r, piece_reader *from) {
  bool is_good = true;
  while (is_good && from->length != 0) {
    is_good = feed(r, (const char *)from->buffer, from->length);
    from->length = 0;
    is_good = is_good && read_piece(r, from);
  }
  return is_good;
}

/* Unpacks what is in the buffer. *is_whole: the last part ended with it. gzip's parts may follow
 * each other, so what comes behind one is another or damage. */
static bool feed_piece(reader *r, piece_reader *from, z_stream *stream, bool *is_whole) {
  static unsigned char text[READ_BYTES];
  stream->next_in = from->buffer;
  stream->avail_in = (unsigned)from->length;
  from->length = 0;
  do {
    if (*is_whole) {
      if (stream->avail_in == 0) {
        return true;
      }
      (void)inflateReset(stream);
      *is_whole = false;
    }
    stream->next_out = text;
    stream->avail_out = sizeof(text);
    const int code = inflate(stream, Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      return refuse(r, "the compressed file is damaged, or something else follows it: %s",
                    stream->msg != NULL ? stream->msg : "out of memory");
    }
    *is_whole = code == Z_STREAM_END;
    const size_t n = sizeof(text) - stream->avail_out;
    if (n != 0 && !feed(r, (const char *)text, n)) {
      return false;
    }
  } while (stream->avail_in != 0 || stream->avail_out == 0);
  return true;
}

static bool feed_packed(reader *r, piece_reader *from) {
  z_stream stream = {0};
  bool is_whole = false;
  if (inflateInit2(&stream, MAX_WBITS + 16) != Z_OK) { /* 16: gzip's own form */
    return refuse_memory(r);
  }
  bool is_good = true;
  while (is_good && from->length != 0) {
    is_good = feed_piece(r, from, &stream, &is_whole) && read_piece(r, from);
  }
  (void)inflateEnd(&stream);
  return is_good &&
         (is_whole || refuse(r, "cannot be read further: the compressed file is cut off"));
}

static bool feed_file(reader *r, const char *path) {
  static piece_reader from;
  from.length = 0;
  from.file = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
  if (from.file < 0) {
    return refuse(r, "cannot be opened: %s", strerror(errno));
  }
  bool is_good = read_piece(r, &from);
  if (is_good && from.length == 1) { /* a pipe may give a byte at a time */
    is_good = read_piece(r, &from);
  }
  const bool is_packed = from.length >= 2 && from.buffer[0] == 0x1f && from.buffer[1] == 0x8b;
  is_good = is_good && (is_packed ? feed_packed(r, &from) : feed_plain(r, &from));
  (void)close(from.file);
  return is_good;
}
#else
/* Puts a gzip process between a compressed file and its reader; the file itself otherwise, or when
 * that fails. */
static FILE *open_plain(int file, pid_t *child) {
  unsigned char magic[2] = {0};
  int ends[2];
  *child = -1;
  if (pread(file, magic, sizeof(magic), 0) != 2 || magic[0] != 0x1f || magic[1] != 0x8b ||
      pipe(ends) != 0) {
    return fdopen(file, "rb");
  }
  *child = fork();
  if (*child < 0) {
    (void)close(ends[0]);
    (void)close(ends[1]);
    return fdopen(file, "rb");
  }
  if (*child == 0) {
    (void)close(ends[0]); /* so that it ends when nobody reads on */
    (void)dup2(file, STDIN_FILENO);
    (void)dup2(ends[1], STDOUT_FILENO);
    (void)execlp("gzip", "gzip", "-dc", (char *)NULL);
    _exit(127);
  }
  (void)close(file);
  (void)close(ends[1]);
  return fdopen(ends[0], "rb");
}

/* Waits for the gzip process, where there is one; whether it succeeded. */
static bool end_child(pid_t child) {
  int status = 0;
  return child <= 0 || (waitpid(child, &status, 0) == child && status == 0);
}

static bool feed_file(reader *r, const char *path) {
  static char buffer[READ_BYTES];
  pid_t child;
  const int descriptor = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY);
  FILE *file = descriptor >= 0 ? open_plain(descriptor, &child) : NULL;
  if (file == NULL) {
    return refuse(r, "cannot be opened: %s", strerror(errno));
  }
  bool is_good = true;
  size_t n;
  while (is_good && (n = fread(buffer, 1, sizeof(buffer), file)) > 0) {
    is_good = feed(r, buffer, n);
  }
  if (is_good && ferror(file) != 0) {
    is_good = refuse(r, "cannot be read further: %s", strerror(errno));
  }
  (void)fclose(file);
  if (!end_child(child) && is_good) {
    is_good = refuse(r, "the compressed file is damaged, or there is no gzip to read it");
  }
  return is_good;
}
#endif

/* ---- Readers -------------------------------------------------------------------------------- */

static void reader_begin(reader *r, const char *name, trace *out, char *error) {
  *out = (trace){0};
  *r = (reader){.name = name, .error = error, .out = out};
  error[0] = '\0';
}

static bool reader_end(reader *r, bool is_good) {
  is_good = is_good && end_line(r); /* the last line may lack its end */
  free(r->table);
  if (!is_good) {
    trace_close(r->out);
  }
  return is_good;
}

bool trace_open(const char *path, trace *out, char error[TRACE_ERROR]) {
  static reader r;
  reader_begin(&r, path, out, error);
  errno = 0;
  return reader_end(&r, feed_file(&r, path));
}

bool trace_parse(const char *name, const char *text, size_t length, trace *out,
                 char error[TRACE_ERROR]) {
  static reader r;
  reader_begin(&r, name, out, error);
  return reader_end(&r, feed(&r, text, length));
}

void trace_close(trace *t) {
  free(t->events);
  *t = (trace){0};
}
