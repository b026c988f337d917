/* SPDX-License-Identifier: MIT
 *
 * Tables and saved plans as text: what is read, what is refused and with which words, and that no
 * byte of a saved plan can be changed unnoticed. The public face is tested on the way. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "support/test.h"
#include "tarn/plan.h"

static tarn_status read_text(const char *text, uint64_t *count) {
  tarn_plan_buffer *buffers = NULL;
  uint64_t *ids = NULL;
  const tarn_status status = tarn_plan_read(text, strlen(text), &buffers, &ids, count);
  CHECK((status == TARN_OK) || (buffers == NULL && ids == NULL && *count == 0));
  free(buffers);
  free(ids);
  return status;
}

static void reads_tables(void) {
  static const char text[] = "id,lower,upper,size\r\n7,0,10,64\r\n\n8, 5 ,6,32";
  tarn_plan_buffer *buffers = NULL;
  uint64_t *ids = NULL;
  uint64_t count = 0;
  REQUIRE_OK(tarn_plan_read(text, sizeof(text) - 1, &buffers, &ids, &count));
  CHECK_EQ(count, 2);
  CHECK_EQ(ids[0], 7);
  CHECK_EQ(buffers[0].end, 10);
  CHECK_EQ(buffers[1].begin, 5);
  CHECK_EQ(buffers[1].bytes, 32);
  free(buffers);
  free(ids);
  REQUIRE_OK(tarn_plan_read("size,alignment,upper,lower\n9,8,3,1\n", 35, &buffers, &ids, &count));
  CHECK_EQ(count, 1);
  CHECK_EQ(buffers[0].alignment, 8);
  CHECK_EQ(buffers[0].begin, 1);
  free(buffers);
  free(ids);
}

static void names_the_line(void) {
  static const struct {
    const char *text;
    const char *words;
  } bad[] = {
      {"", "line 1"},
      {"id,lower,size\n", "line 1"},
      {"id,lower,upper,size,size\n", "line 1"},
      {"id,lower,upper,size\n1,2,3\n", "line 2 has too few"},
      {"id,lower,upper,size\n1,2,3,4\n1,2,3,4,5\n", "line 3 has too many"},
      {"id,lower,upper,size\n1,2,3,-4\n", "line 2 has a field"},
      {"id,lower,upper,size\n1,2,3,18446744073709551616\n", "line 2 has a field"},
      {"id,lower,upper,size\n1,3,2,4\n", "line 2 has a lifetime"},
  };
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    uint64_t count = 0;
    CHECK_STATUS(read_text(bad[i].text, &count), TARN_INVALID);
    CHECK_HAS(tarn_last_message(), bad[i].words);
  }
}

/* Any bytes: a table or a refusal, never a crash. */
static void survives_any_bytes(void) {
  static const char letters[] = "id,lower,upper,size\n0123456789,,,\n\r\t -x\0\xff";
  tarni_rng rng = {3};
  int n_read = 0;
  for (int round = 0; round < 20000; round++) {
    char text[160];
    const size_t head = tarni_rng_below(&rng, 4) == 0 ? 0 : 20;
    const size_t length = head + tarni_rng_below(&rng, sizeof(text) - head);
    tarn_plan_buffer *buffers = NULL;
    uint64_t *ids = NULL;
    uint64_t count = 0;
    memcpy(text, letters, head);
    for (size_t i = head; i < length; i++) {
      text[i] = letters[tarni_rng_below(&rng, sizeof(letters))];
    }
    n_read += tarn_plan_read(text, length, &buffers, &ids, &count) == TARN_OK;
    free(buffers);
    free(ids);
  }
  CHECK(n_read > 0 && n_read < 20000);
}

enum { SOME = 12 };

static tarn_plan_problem some_problem(tarn_plan_buffer *buffers) {
  tarni_rng rng = {8};
  for (uint64_t i = 0; i < SOME; i++) {
    buffers[i] = (tarn_plan_buffer){.bytes = 16 * (1 + tarni_rng_below(&rng, 9)),
                                    .begin = i,
                                    .end = i + 1 + tarni_rng_below(&rng, 6),
                                    .alignment = 16};
  }
  return (tarn_plan_problem){.size = sizeof(tarn_plan_problem), .buffers = buffers, .count = SOME};
}

static void saves_and_loads(void) {
  tarn_plan_buffer buffers[SOME];
  const tarn_plan_problem problem = some_problem(buffers);
  tarn_plan *plan = NULL;
  tarn_plan *again = NULL;
  char *text = NULL;
  size_t length = 0;
  tarn_plan_info info = {.size = sizeof(info)};
  tarn_plan_info other = {.size = sizeof(other)};
  REQUIRE_OK(tarn_plan_create(&problem, NULL, &plan));
  REQUIRE_OK(tarn_plan_save(plan, &text, &length));
  REQUIRE_OK(tarn_plan_load(&problem, text, length, &again));
  CHECK_OK(tarn_plan_get_info(plan, &info));
  CHECK_OK(tarn_plan_get_info(again, &other));
  CHECK_EQ(info.height, other.height);
  CHECK_EQ(info.bound, other.bound);
  CHECK_EQ(info.bind_begin, other.bind_begin);
  CHECK_EQ(info.bind_end, other.bind_end);
  CHECK_EQ(info.steps, other.steps);
  CHECK_EQ(info.fingerprint, other.fingerprint);
  CHECK(info.is_proven == other.is_proven);
  CHECK(info.is_proven && info.height == info.bound);
  CHECK(memcmp(tarn_plan_offsets(plan), tarn_plan_offsets(again), SOME * sizeof(uint64_t)) == 0);
  tarn_plan_destroy(again);
  for (int field = 0; field < 4; field++) { /* another problem */
    tarn_plan_buffer changed[SOME];
    tarn_plan_problem different = problem;
    memcpy(changed, buffers, sizeof(changed));
    different.buffers = changed;
    changed[5].bytes += field == 0 ? 16 : 0;
    changed[5].end += field == 1 ? 1 : 0;
    changed[5].alignment *= field == 2 ? 2 : 1;
    different.count -= field == 3 ? 1 : 0;
    CHECK_STATUS(tarn_plan_load(&different, text, length, &again), TARN_STATE);
    CHECK(again == NULL);
  }
  for (size_t i = 0; i < length; i++) { /* any byte changed, any end cut off */
    text[i] ^= 1;
    CHECK(tarn_plan_load(&problem, text, length, &again) != TARN_OK);
    text[i] ^= 1;
    CHECK(i == length - 1 || tarn_plan_load(&problem, text, i, &again) != TARN_OK);
  }
  CHECK_OK(tarn_plan_load(&problem, text, length, &again));
  tarn_plan_destroy(again);
  tarn_plan_destroy(plan);
  free(text);
}

static void refuses_null_and_nonsense(void) {
  tarn_plan_buffer buffers[SOME];
  tarn_plan_problem problem = some_problem(buffers);
  tarn_plan *plan = NULL;
  uint64_t height = 7;
  CHECK_STATUS(tarn_plan_create(NULL, NULL, &plan), TARN_INVALID);
  CHECK_STATUS(tarn_plan_create(&problem, NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_plan_check(&problem, NULL, &height), TARN_INVALID);
  CHECK_EQ(height, 0);
  CHECK(tarn_plan_offsets(NULL) == NULL);
  tarn_plan_destroy(NULL);
  const uint32_t starts[SOME + 1] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const uint32_t far[1] = {SOME};
  problem.predecessor_starts = starts;
  CHECK_STATUS(tarn_plan_create(&problem, NULL, &plan), TARN_INVALID);
  problem.predecessors = far;
  CHECK_STATUS(tarn_plan_create(&problem, NULL, &plan), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "predecessor 12");
}

static const test_case cases[] = {
    {"reads_tables", reads_tables},
    {"names_the_line", names_the_line},
    {"survives_any_bytes", survives_any_bytes},
    {"saves_and_loads", saves_and_loads},
    {"refuses_null_and_nonsense", refuses_null_and_nonsense},
};

TEST_MAIN(cases)
