/* SPDX-License-Identifier: MIT
 *
 * Where the buffers of `tarn plan` come from: a table of lifetimes, or a trace, whose event numbers
 * are the time and whose allocations are numbered from 0. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "plan.h"
#include "trace.h"

/* Keeps the part of each lifetime that is inside the window, and the buffers that have one. Where
 * all of time is the window all buffers stay, also those that never live: a plan has an offset for
 * each. */
static void clip_buffers(plan_job *job, uint64_t begin, uint64_t end) {
  uint64_t n = 0;
  if (begin == 0 && end == UINT64_MAX) {
    return;
  }
  for (uint64_t i = 0; i < job->count; i++) {
    tarn_plan_buffer buffer = job->buffers[i];
    buffer.begin = buffer.begin < begin ? begin : buffer.begin;
    buffer.end = buffer.end > end ? end : buffer.end;
    if (buffer.begin < buffer.end) {
      job->buffers[n] = buffer;
      job->ids[n] = job->ids[i];
      n++;
    }
  }
  job->count = n;
}

/* The blocks of a trace; closes it. */
static bool take_trace(plan_job *job, trace *events) {
  job->count = events->n_blocks;
  job->buffers = calloc(job->count + 1, sizeof(*job->buffers));
  job->ids = calloc(job->count + 1, sizeof(*job->ids));
  const bool has_memory = job->buffers != NULL && job->ids != NULL;
  for (size_t i = 0; i < events->n_events && has_memory; i++) {
    const trace_event *event = &events->events[i];
    tarn_plan_buffer *buffer = &job->buffers[event->block];
    if (event->kind == TRACE_ALLOC) {
      *buffer = (tarn_plan_buffer){.bytes = event->bytes, .begin = i, .end = events->n_events};
      job->ids[event->block] = event->block;
    } else {
      buffer->end = i;
    }
  }
  trace_close(events);
  if (!has_memory) {
    (void)fprintf(stderr, "tarn: out of memory for the blocks of %s\n", job->path);
  }
  return has_memory;
}

char *plan_read_whole(const char *path, size_t *length) {
  char *text = NULL;
  size_t capacity = 0;
  const bool is_input = strcmp(path, "-") == 0;
  FILE *file = is_input ? stdin : fopen(path, "rb");
  bool is_good = file != NULL;
  *length = 0;
  while (is_good) {
    if (*length == capacity) {
      capacity = 2 * capacity + (1 << 16);
      char *larger = realloc(text, capacity);
      is_good = larger != NULL;
      text = is_good ? larger : text;
    }
    const size_t got = is_good ? fread(text + *length, 1, capacity - *length, file) : 0;
    *length += got;
    if (got == 0) {
      is_good = is_good && ferror(file) == 0;
      break;
    }
  }
  if (!is_good) {
    (void)fprintf(stderr, "tarn: cannot read %s: %s\n", path, strerror(errno));
    free(text);
    text = NULL;
  }
  if (file != NULL && !is_input) {
    (void)fclose(file);
  }
  return text;
}

static bool load_table(plan_job *job, const char *text, size_t length) {
  const tarn_status status = tarn_plan_read(text, length, &job->buffers, &job->ids, &job->count);
  if (status != TARN_OK) {
    (void)fprintf(stderr, "tarn: %s: %s\n", job->path, tarn_last_message());
  }
  return status == TARN_OK;
}

/* text NULL: the trace is packed, and its file is read again. */
static bool load_trace(plan_job *job, const char *text, size_t length) {
  char error[TRACE_ERROR];
  trace events;
  if (text != NULL ? !trace_parse(job->path, text, length, &events, error)
                   : !trace_open(job->path, &events, error)) {
    (void)fprintf(stderr, "tarn: %s\n", error);
    return false;
  }
  return take_trace(job, &events);
}

/* What a pipe gave cannot be read again. */
static bool load_packed(plan_job *job) {
  struct stat about;
  if (strcmp(job->path, "-") == 0 || (stat(job->path, &about) == 0 && !S_ISREG(about.st_mode))) {
    (void)fprintf(stderr, "tarn: %s is packed, and no file: unpack it first (zcat)\n", job->path);
    return false;
  }
  return load_trace(job, NULL, 0);
}

/* A table names its columns in its first line; a trace has no comma there but in a comment. */
static bool is_table(const char *text, size_t length) {
  for (size_t i = 0; i < length && text[i] != '\n' && text[i] != '#'; i++) {
    if (text[i] == ',') {
      return true;
    }
  }
  return false;
}

bool plan_job_load(plan_job *job, uint64_t window_begin, uint64_t window_end) {
  size_t length = 0;
  char *text = plan_read_whole(job->path, &length);
  if (text == NULL) {
    return false;
  }
  const bool is_packed = length != 0 && (unsigned char)text[0] == 0x1f;
  const bool is_loaded = is_packed                ? load_packed(job)
                         : is_table(text, length) ? load_table(job, text, length)
                                                  : load_trace(job, text, length);
  free(text);
  if (is_loaded) {
    clip_buffers(job, window_begin, window_end);
  }
  return is_loaded;
}
