/* SPDX-License-Identifier: MIT
 *
 * The reader of recorded programs: what it makes of a good trace, what it says about a bad one, and
 * that no bytes make it do anything else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "support/test.h"
#include "tools/peaks.h"
#include "tools/trace.h"

static char message[TRACE_ERROR];

static bool parse(const char *text, trace *t) {
  return trace_parse("x.trace", text, strlen(text), t, message);
}

static void a_good_trace(void) {
  trace t;
  REQUIRE(parse("# made by hand\n"
                "a 7 100 3\r\n"
                "\n"
                "a 18446744073709551615 50 0   # another stream\n"
                "f 7\n"
                "  a 7\t0 3\n"
                "f 18446744073709551615",
                &t));
  CHECK_EQ(t.n_events, 5);
  CHECK_EQ(t.n_blocks, 3);
  CHECK_EQ(t.n_streams, 2);
  CHECK_EQ(t.live_peak_bytes, 150);
  CHECK_EQ(t.live_peak_blocks, 2);
  CHECK_EQ(t.events[0].kind, TRACE_ALLOC);
  CHECK_EQ(t.events[0].bytes, 100);
  CHECK_EQ(t.events[1].block, 1);
  CHECK_EQ(t.events[1].stream, 1);
  /* A free knows its block. */
  CHECK_EQ(t.events[2].kind, TRACE_FREE);
  CHECK_EQ(t.events[2].block, 0);
  CHECK_EQ(t.events[2].bytes, 100);
  /* The name 7 is used again: another block. */
  CHECK_EQ(t.events[3].block, 2);
  CHECK_EQ(t.events[4].block, 1);
  CHECK_EQ(t.events[4].stream, 1);
  trace_close(&t);
  CHECK(t.events == NULL);
  CHECK(parse("", &t) && t.n_events == 0);
  trace_close(&t);
}

static void bad_traces(void) {
  static const struct {
    const char *text;
    const char *message;
  } traces[] = {
      {"a 1 2", "x.trace:1: an allocation is"},
      {"a 1 2 0 9", "x.trace:1: an allocation is"},
      {"\n\nf", "x.trace:3: a free is"},
      {"f 1 2", "x.trace:1: a free is"},
      {"f 1", "x.trace:1: block 1 is freed"},
      {"a 1 2 0\nf 1\nf 1\n", "x.trace:3: block 1 is freed"},
      {"a 1 2 0\na 1 2 0\n", "x.trace:2: block 1 is allocated again"},
      {"b 1\n", "'b' is no event"},
      {"aa 1 2 0\n", "'aa' is no event"},
      {"a -1 2 0\n", "'-1' is not a number"},
      {"a 1 2k 0\n", "'2k' is not a number"},
      {"a 18446744073709551616 2 0\n", "is not a number below 2^64"},
      {"a 1 1125899906842625 0\n", "more than 2^50"},
      {"a 1 1125899906842624 0\na 2 1 0", "x.trace:2: 1 bytes on top of 1125899906842624"},
  };
  for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++) {
    trace t;
    CHECK(!parse(traces[i].text, &t));
    CHECK(t.events == NULL && t.n_events == 0);
    CHECK_HAS(message, traces[i].message);
  }
}

static void bad_bytes(void) {
  trace t;
  char text[2 * TRACE_MAX_LINE];
  CHECK(!trace_parse("x.trace", "a 1\0 2", 6, &t, message));
  CHECK_HAS(message, "x.trace:1: a zero byte");
  memset(text, ' ', sizeof(text));
  CHECK(!trace_parse("x.trace", text, sizeof(text), &t, message));
  CHECK_HAS(message, "longer than 256 bytes");
  /* Comments may be as long as they like. */
  text[0] = '#';
  CHECK(trace_parse("x.trace", text, sizeof(text), &t, message));
  trace_close(&t);
  /* A name that does not fit is cut, not overrun. */
  char name[TRACE_ERROR + 100];
  memset(name, 'n', sizeof(name));
  name[sizeof(name) - 1] = '\0';
  CHECK(!trace_parse(name, "?", 1, &t, message));
  CHECK_EQ(strlen(message), TRACE_ERROR - 1);
}

static void many_streams(void) {
  static char text[TRACE_MAX_STREAMS * 24];
  size_t length = 0;
  for (int i = 0; i < TRACE_MAX_STREAMS; i++) {
    length += (size_t)snprintf(text + length, sizeof(text) - length, "a %d 1 %d\n", i, i + 5);
  }
  trace t;
  REQUIRE(trace_parse("x.trace", text, length, &t, message));
  CHECK_EQ(t.n_streams, TRACE_MAX_STREAMS);
  CHECK_EQ(t.events[TRACE_MAX_STREAMS - 1].stream, TRACE_MAX_STREAMS - 1);
  trace_close(&t);
  (void)snprintf(text + length, sizeof(text) - length, "a 99999 1 4\n");
  CHECK(!parse(text, &t));
  CHECK_HAS(message, "x.trace:1025: stream 4 is one too many");
}

/* Many names live at once, freed in another order: compared with a plain table. */
static void names_against_a_table(void) {
  enum { N = 20000, NAMES = 3000 };
  static char text[N * 32];
  static struct {
    bool is_live;
    uint32_t block;
  } names[NAMES];
  static uint32_t expected[N];
  tarni_rng rng = {42};
  size_t length = 0;
  uint32_t n_blocks = 0;
  memset(names, 0, sizeof(names));
  for (int i = 0; i < N; i++) {
    const uint64_t name = tarni_rng_below(&rng, NAMES);
    /* Names that collide in the table: far apart, the same below. */
    const unsigned long long id = name << 40 | name % 7;
    length += names[name].is_live
                  ? (size_t)snprintf(text + length, sizeof(text) - length, "f %llu\n", id)
                  : (size_t)snprintf(text + length, sizeof(text) - length, "a %llu 8 1\n", id);
    if (!names[name].is_live) {
      names[name].block = n_blocks++;
    }
    names[name].is_live = !names[name].is_live;
    expected[i] = names[name].block;
  }
  trace t;
  REQUIRE(trace_parse("x.trace", text, length, &t, message));
  CHECK_EQ(t.n_events, N);
  CHECK_EQ(t.n_blocks, n_blocks);
  uint32_t n_wrong = 0;
  for (size_t i = 0; i < t.n_events; i++) {
    n_wrong += t.events[i].block != expected[i];
  }
  CHECK_EQ(n_wrong, 0);
  trace_close(&t);
}

/* Bytes that look almost like a trace: either it is one, or there is a message with a line. */
static void any_bytes(void) {
  static const char alphabet[] = "aaaff 0123456789 \n\n\t\r#-x\xff";
  tarni_rng rng = {7};
  uint32_t n_good = 0;
  for (int i = 0; i < 20000; i++) {
    char text[64];
    const size_t length = tarni_rng_below(&rng, sizeof(text));
    for (size_t k = 0; k < length; k++) {
      const bool is_odd = tarni_rng_below(&rng, 50) == 0;
      text[k] = alphabet[tarni_rng_below(&rng, sizeof(alphabet) - 1)];
      if (is_odd) {
        text[k] = (char)tarni_rng_below(&rng, 256);
      }
    }
    trace t;
    const bool is_good = trace_parse("x", text, length, &t, message);
    n_good += is_good;
    if (!is_good && strncmp(message, "x:", 2) != 0) {
      CHECK_HAS(message, "x:");
    }
    trace_close(&t);
  }
  CHECK(n_good > 100 && n_good < 19900);
}

/* ---- Files ---------------------------------------------------------------------------------- */

static void write_file(const char *path, const void *bytes, size_t length) {
  FILE *file = fopen(path, "wb");
  REQUIRE(file != NULL);
  CHECK_EQ(fwrite(bytes, 1, length, file), length);
  CHECK_EQ(fclose(file), 0);
}

/* "a 1 4096 0", "f 1" by gzip */
static const unsigned char compressed[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02,
                                           0x03, 0x4b, 0x54, 0x30, 0x54, 0x30, 0x31, 0xb0, 0x34,
                                           0x53, 0x30, 0xe0, 0x4a, 0x53, 0x30, 0xe4, 0x02, 0x00,
                                           0xb0, 0xba, 0x23, 0x93, 0x0f, 0x00, 0x00, 0x00};

static void files(void) {
  char path[64], plain[80];
  trace t;
  (void)snprintf(path, sizeof(path), "/tmp/tarn-test-trace-%d", (int)getpid());
  write_file(path, "a 1 4096 0\nf 1\n", 15);
  CHECK(trace_open(path, &t, message));
  CHECK_EQ(t.n_events, 2);
  trace_close(&t);
  write_file(path, compressed, sizeof(compressed));
  CHECK(trace_open(path, &t, message));
  CHECK_EQ(t.n_events, 2);
  CHECK_EQ(t.live_peak_bytes, 4096);
  trace_close(&t);
  /* Cut off: its check sum is missing. */
  write_file(path, compressed, sizeof(compressed) - 8);
  CHECK(!trace_open(path, &t, message));
  (void)snprintf(plain, sizeof(plain), "%s:", path);
  CHECK_HAS(message, plain);
  CHECK_EQ(remove(path), 0);
  CHECK(!trace_open(path, &t, message));
  CHECK_HAS(message, "No such file");
  CHECK(!trace_open("/", &t, message));
  CHECK_HAS(message, "/: ");
}

/* Parts that gzip has packed may follow each other; what else follows is refused, not passed over:
 * it may be events. */
static void what_follows_a_compressed_file(void) {
  static const char *const tails[] = {"a 2 4096 0\n", "x", "\x1f", "\x1f\x8b\x08"};
  unsigned char bytes[2 * sizeof(compressed)];
  char path[64];
  trace t;
  (void)snprintf(path, sizeof(path), "/tmp/tarn-test-trace-%d", (int)getpid());
  memcpy(bytes, compressed, sizeof(compressed));
  memcpy(bytes + sizeof(compressed), compressed, sizeof(compressed));
  write_file(path, bytes, sizeof(bytes));
  CHECK(trace_open(path, &t, message));
  CHECK_EQ(t.n_events, 4);
  trace_close(&t);
  for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
    memcpy(bytes + sizeof(compressed), tails[i], strlen(tails[i]));
    write_file(path, bytes, sizeof(compressed) + strlen(tails[i]));
    if (!CHECK(!trace_open(path, &t, message))) {
      test_note("tail %zu: %zu events", i, t.n_events);
      trace_close(&t);
    }
  }
  CHECK_EQ(remove(path), 0);
}

/* A bad line of a compressed file is refused at once, however much follows it. */
static void a_bad_line_of_many(void) {
  char path[64], command[128];
  trace t;
  (void)snprintf(path, sizeof(path), "/tmp/tarn-test-trace-%d", (int)getpid());
  FILE *file = fopen(path, "wb");
  REQUIRE(file != NULL);
  CHECK(fputs("no event\n", file) >= 0);
  for (int i = 0; i < 100000; i++) {
    CHECK(fprintf(file, "a %d 4096 0\n", i) > 0);
  }
  CHECK_EQ(fclose(file), 0);
  (void)snprintf(command, sizeof(command), "gzip %s", path);
  CHECK_EQ(system(command), 0); /* NOLINT(cert-env33-c,concurrency-mt-unsafe) */
  (void)snprintf(path, sizeof(path), "/tmp/tarn-test-trace-%d.gz", (int)getpid());
  CHECK(!trace_open(path, &t, message));
  CHECK_HAS(message, ".gz:1: 'no' is no event");
  CHECK_EQ(remove(path), 0);
}

/* What ships in traces is whole, and its peaks are those that PyTorch counted. */
static void recorded_programs(void) {
  static const char *const names[] = {"bert_ingest",      "gnn_train",        "gpt2_train",
                                      "llama_ckpt_train", "llama_decode",     "maskrcnn_train",
                                      "mixtral_train",    "prefetch_streams", "resnet_train"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    char path[128], name[PEAKS_NAME];
    peaks found;
    trace t;
    (void)snprintf(path, sizeof(path), "traces/%s.trace.gz", names[i]);
    CHECK_TEXT(peaks_name(path, name), names[i]);
    CHECK(peaks_find(path, &found));
    if (!CHECK(trace_open(path, &t, message))) {
      test_note("%s", message);
      continue;
    }
    CHECK_EQ(t.live_peak_bytes, found.live_bytes);
    CHECK(found.native_bytes > found.live_bytes && found.expandable_bytes > found.live_bytes);
    trace_close(&t);
  }
}

static void unknown_peaks(void) {
  peaks found = {1, 1, 1};
  char name[PEAKS_NAME];
  CHECK(!peaks_find("traces/bert.trace.gz", &found));
  CHECK(!peaks_find("traces/trace", &found));         /* the heading */
  CHECK(!peaks_find("bert_ingest.trace.gz", &found)); /* no such file beside it */
  CHECK_EQ(found.native_bytes, 0);
  CHECK_TEXT(peaks_name("a/b.gz/c.d", name), "c.d");
  CHECK_TEXT(peaks_name(".trace.gz", name), ".trace");
  char path[256], whole[208];
  (void)snprintf(whole, sizeof(whole), "%0200d", 7);
  (void)snprintf(path, sizeof(path), "%s.trace.gz", whole);
  CHECK_TEXT(peaks_name(path, name), whole); /* not two traces of one name */
}

static const test_case cases[] = {
    {"trace: a good one", a_good_trace},
    {"trace: bad ones are refused with file and line", bad_traces},
    {"trace: zero bytes, long lines, long names", bad_bytes},
    {"trace: as many streams as there may be", many_streams},
    {"trace: names against a table", names_against_a_table},
    {"trace: any bytes", any_bytes},
    {"trace: files, plain, compressed, cut off, missing", files},
    {"trace: what follows a compressed file", what_follows_a_compressed_file},
    {"trace: a bad line of many", a_bad_line_of_many},
    {"trace: the recorded programs", recorded_programs},
    {"trace: peaks that nobody counted", unknown_peaks},
};
TEST_MAIN(cases)
