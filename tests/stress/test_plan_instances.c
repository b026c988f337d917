/* SPDX-License-Identifier: MIT
 *
 * The planner on published problems, where a folder `plans` beside the project or TARN_TEST_PLANS
 * has them, and on puzzles of its own: rectangles cut into pieces, so that a full packing is known
 * to exist. Limits are in steps, so that the result does not depend on the machine. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/plan.h"
#include "base/rng.h"
#include "support/test.h"

/* ---- Files ---------------------------------------------------------------------------------- */

static bool find_file(const char *name, char path[512]) {
  const char *folder = getenv("TARN_TEST_PLANS");
  glob_t found = {0};
  bool is_found = false;
  (void)snprintf(path, 512, "%s/%s", folder != NULL ? folder : "../*/plans", name);
  if (glob(path, 0, NULL, &found) == 0) {
    (void)snprintf(path, 512, "%s", found.gl_pathv[0]);
    is_found = true;
  }
  globfree(&found);
  return is_found;
}

static char *read_all(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  enum { ROOM = 4 << 20 };
  char *text = file == NULL ? NULL : malloc(ROOM);
  *length = text == NULL ? 0 : fread(text, 1, ROOM, file);
  if (file != NULL) {
    (void)fclose(file);
  }
  return text;
}

/* Plans a file within a number of steps; false when it is not there. */
static bool plan_file(const char *name, uint64_t capacity, uint64_t max_steps, tarni_plan *plan) {
  char path[512];
  size_t length = 0;
  tarni_plan_table table;
  if (!find_file(name, path)) {
    return false;
  }
  char *text = read_all(path, &length);
  const bool is_read = CHECK(text != NULL) && CHECK_OK(tarni_plan_read(text, length, &table));
  free(text);
  if (!is_read) {
    return false;
  }
  const tarni_plan_problem problem = {.buffers = table.buffers, .count = table.count};
  const tarni_plan_limits limits = {.capacity = capacity, .max_steps = max_steps};
  const bool is_planned = CHECK_OK(tarni_plan_solve(&problem, &limits, plan));
  tarni_plan_table_release(&table);
  if (is_planned) {
    test_note("%s: %llu of %llu (+%.4f %%) in %llu steps%s", name, (unsigned long long)plan->height,
              (unsigned long long)plan->bound,
              100.0 * ((double)plan->height / (double)plan->bound - 1.0),
              (unsigned long long)plan->steps, plan->is_proven ? ", proven" : "");
  }
  return is_planned;
}

static void solves_the_puzzles(void) {
  enum { CAPACITY = 1048576 };
  for (int letter = 'A'; letter <= 'H'; letter++) {
    char name[32];
    tarni_plan plan;
    (void)snprintf(name, sizeof(name), "%c.%d.csv", letter, (int)CAPACITY);
    if (!plan_file(name, CAPACITY, 3000000, &plan)) {
      test_skip("the published puzzles are not here");
      return;
    }
    CHECK(plan.height <= CAPACITY);
    tarni_plan_release(&plan);
  }
}

/* Name, steps, and how far above the bound the plan may be, in parts of a million. */
static void check_graph(const char *name, uint64_t max_steps, uint64_t parts) {
  tarni_plan plan;
  if (!plan_file(name, 0, max_steps, &plan)) {
    test_skip("the published graphs are not here");
    return;
  }
  CHECK(plan.height - plan.bound <= plan.bound / 1000000 * parts);
  tarni_plan_release(&plan);
}

static void packs_resnet50(void) {
  check_graph("resnet50.csv", 200000, 0);
}

static void packs_g_1(void) {
  check_graph("G_1.csv", 200000, 0);
}

static void packs_s_1(void) {
  check_graph("S_1.csv", 900000, 2500);
}

static void packs_pangu(void) {
  check_graph("pangu_2.6B.csv", 600000, 29000);
}

/* ---- Puzzles -------------------------------------------------------------------------------- */

enum { PIECES = 150, SIDE = 1024 };

typedef struct piece {
  uint64_t begin, end, low, high;
} piece;

/* Cuts a random piece in time or in offset until there are enough. */
static void cut_pieces(tarni_rng *rng, piece *pieces) {
  pieces[0] = (piece){0, SIDE, 0, SIDE};
  for (uint32_t n = 1; n < PIECES;) {
    piece *one = &pieces[tarni_rng_below(rng, n)];
    const piece *other = &pieces[tarni_rng_below(rng, n)]; /* the larger of two, mostly */
    if ((other->end - other->begin) * (other->high - other->low) >
        (one->end - one->begin) * (one->high - one->low)) {
      one = &pieces[other - pieces];
    }
    pieces[n] = *one;
    if (tarni_rng_below(rng, 2) == 0 && one->end - one->begin > 1) {
      one->end = pieces[n].begin = one->begin + 1 + tarni_rng_below(rng, one->end - one->begin - 1);
      n++;
    } else if (one->high - one->low > 1) {
      one->high = pieces[n].low = one->low + 1 + tarni_rng_below(rng, one->high - one->low - 1);
      n++;
    }
  }
}

/* Every puzzle is full, so only a plan at the bound is right; most must be found. */
static void solves_its_own_puzzles(void) {
  enum { PUZZLES = 20 };
  int n_solved = 0;
  for (uint64_t seed = 0; seed < PUZZLES; seed++) {
    tarni_rng rng = {seed};
    piece pieces[PIECES];
    tarni_plan_buffer buffers[PIECES] = {0};
    tarni_plan plan;
    cut_pieces(&rng, pieces);
    for (uint32_t i = 0; i < PIECES; i++) {
      buffers[i] = (tarni_plan_buffer){
          .bytes = pieces[i].high - pieces[i].low, .begin = pieces[i].begin, .end = pieces[i].end};
    }
    const tarni_plan_problem problem = {.buffers = buffers, .count = PIECES};
    const tarni_plan_limits limits = {.max_steps = 200000};
    REQUIRE_OK(tarni_plan_solve(&problem, &limits, &plan));
    CHECK_EQ(plan.bound, SIDE);
    n_solved += plan.is_proven;
    tarni_plan_release(&plan);
  }
  test_note("%d of %d full rectangles of %d pieces", n_solved, (int)PUZZLES, (int)PIECES);
  CHECK(n_solved >= PUZZLES * 3 / 4);
}

/* ---- Large scenes --------------------------------------------------------------------------- */

enum { LARGE = 6000, LARGE_TIMES = 12000 };

/* Many short lives and some long ones, sizes of all magnitudes, no two alike: nothing tiles. */
static void make_large(uint64_t seed, tarni_plan_buffer *buffers) {
  tarni_rng rng = {seed};
  for (uint32_t i = 0; i < LARGE; i++) {
    const bool is_short = tarni_rng_below(&rng, 10) != 0;
    const uint64_t begin = tarni_rng_below(&rng, LARGE_TIMES);
    const uint64_t longest = (uint64_t)(is_short ? 64 : 4096) >> tarni_rng_below(&rng, 4);
    buffers[i] = (tarni_plan_buffer){.bytes = ((uint64_t)1 << (8 + tarni_rng_below(&rng, 16))) +
                                              tarni_rng_below(&rng, 1 << 16),
                                     .begin = begin,
                                     .end = begin + 1 + tarni_rng_below(&rng, longest)};
  }
}

/* The portfolio alone leaves up to eight per cent of such. */
static void packs_large_scenes(void) {
  static tarni_plan_buffer buffers[LARGE];
  for (uint64_t seed = 1; seed <= 3; seed++) {
    tarni_plan plan;
    make_large(seed, buffers);
    const tarni_plan_problem problem = {.buffers = buffers, .count = LARGE};
    const tarni_plan_limits limits = {.max_steps = 1500000};
    REQUIRE_OK(tarni_plan_solve(&problem, &limits, &plan));
    test_note("%u buffers: %.3f %% above the bound", (unsigned)LARGE,
              100.0 * (double)(plan.height - plan.bound) / (double)plan.bound);
    CHECK(plan.height - plan.bound <= plan.bound / 100);
    tarni_plan_release(&plan);
  }
}

static const test_case cases[] = {
    {"solves_the_puzzles", solves_the_puzzles},
    {"packs_resnet50", packs_resnet50},
    {"packs_g_1", packs_g_1},
    {"packs_s_1", packs_s_1},
    {"packs_pangu", packs_pangu},
    {"solves_its_own_puzzles", solves_its_own_puzzles},
    {"packs_large_scenes", packs_large_scenes},
};

TEST_MAIN(cases)
