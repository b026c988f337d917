/* SPDX-License-Identifier: MIT
 *
 * tarn plan: a table and a trace with known answers, its JSON, a drawing, plans saved, loaded and
 * refused, and what it says about wrong use. The command is looked for in TARN_TEST_BUILD_DIR. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/test.h"
#include "tarn/plan.h"

static char output[1 << 16];
static char folder[] = "/tmp/tarn-test-plan-XXXXXX";

/* Runs `BEFORE tarn plan ARGUMENTS` in the folder, with both outputs kept; the exit status. */
static int run_plan_after(const char *before, const char *arguments) {
  char command[1024];
  (void)snprintf(command, sizeof(command), "exec 2>&1; cd '%s' && %s '%s/tarn' plan %s", folder,
                 before, getenv("TARN_TEST_BUILD_DIR"), arguments);
  FILE *pipe = popen(command, "r");
  if (pipe == NULL) {
    return -1;
  }
  output[fread(output, 1, sizeof(output) - 1, pipe)] = '\0';
  const int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run_plan(const char *arguments) {
  return run_plan_after("", arguments);
}

static bool write_file(const char *name, const char *text) {
  char path[128];
  (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  return CHECK(file != NULL) && CHECK(fputs(text, file) >= 0) && CHECK(fclose(file) == 0);
}

static bool set_up(void) {
  if (getenv("TARN_TEST_BUILD_DIR") == NULL) {
    test_skip("TARN_TEST_BUILD_DIR is not set: run by ctest");
    return false;
  }
  (void)snprintf(folder, sizeof(folder), "/tmp/tarn-test-plan-XXXXXX");
  return CHECK(mkdtemp(folder) != NULL) &&
         write_file("a.csv", "id,lower,upper,size\n7,0,2,100\n8,1,3,50\n9,2,4,100\n") &&
         write_file("b.csv", "id,lower,upper,size\n7,0,2,100\n8,1,3,51\n9,2,4,100\n") &&
         write_file("t.trace", "a 0 1000 0\na 1 500 0\nf 0\na 2 1000 0\nf 1\nf 2\n");
}

static void take_down(void) {
  char command[128];
  (void)snprintf(command, sizeof(command), "rm -r '%s'", folder);
  CHECK_EQ(system(command), 0); /* NOLINT(cert-env33-c,concurrency-mt-unsafe) */
}

static void known_answers(void) {
  if (!set_up()) {
    return;
  }
  CHECK_EQ(run_plan("--json a.csv"), 0);
  CHECK_HAS(output, "\"buffers\": 3");
  CHECK_HAS(output, "\"bound\": 150");
  CHECK_HAS(output, "\"height\": 150");
  CHECK_HAS(output, "\"proven\": true");
  CHECK_HAS(output, "\"valid\": true");
  CHECK_EQ(run_plan("--json t.trace"), 0);
  CHECK_HAS(output, "\"height\": 1500");
  CHECK_EQ(run_plan("--json --window 0:1 t.trace"), 0);
  CHECK_HAS(output, "\"buffers\": 1");
  CHECK_EQ(run_plan("--capacity 140 --svg a.svg a.csv"), 0);
  CHECK_HAS(output, "no plan does");
  CHECK_EQ(run_plan("--json --capacity 1K a.csv"), 0);
  CHECK_HAS(output, "\"fits\": true");
  CHECK_EQ(run_plan("--json --capacity 64KiB a.csv"), 0); /* as everywhere */
  CHECK_HAS(output, "\"capacity\": 65536");
  CHECK_EQ(run_plan("--json --capacity 2p a.csv"), 0);
  CHECK_HAS(output, "\"capacity\": 2251799813685248");
  take_down();
}

/* A comma in a comment makes no table. */
static void a_trace_with_a_comment(void) {
  if (!set_up()) {
    return;
  }
  CHECK(write_file("c.trace", "# two blocks, one freed\na 0 1000 0\na 1 500 0\nf 0\n"));
  CHECK_EQ(run_plan("--json c.trace"), 0);
  CHECK_HAS(output, "\"height\": 1500");
  CHECK(write_file("d.trace", "a 0 1000 0 # weights, all of them\n"));
  CHECK_EQ(run_plan("--json d.trace"), 0);
  CHECK_HAS(output, "\"height\": 1000");
  take_down();
}

/* What can be read only once. */
static void from_a_pipe(void) {
  if (!set_up()) {
    return;
  }
  CHECK_EQ(run_plan_after("cat t.trace |", "--json /dev/stdin"), 0);
  CHECK_HAS(output, "\"buffers\": 3");
  CHECK_HAS(output, "\"height\": 1500");
  CHECK_EQ(run_plan_after("cat a.csv |", "--json /dev/stdin"), 0);
  CHECK_HAS(output, "\"height\": 150");
  CHECK_EQ(run_plan_after("gzip -c t.trace |", "/dev/stdin"), 1);
  CHECK_HAS(output, "unpack it first");
  take_down();
}

static void saved_and_loaded(void) {
  if (!set_up()) {
    return;
  }
  CHECK_EQ(run_plan("--save a.plan a.csv"), 0);
  CHECK_EQ(run_plan("--json --load a.plan a.csv"), 0);
  CHECK_HAS(output, "\"height\": 150");
  CHECK_EQ(run_plan("--json --load a.plan --capacity 140 a.csv"), 0);
  CHECK_HAS(output, "\"can_fit\": false");
  CHECK_EQ(run_plan("--load a.plan --capacity 140 a.csv"), 0);
  CHECK_HAS(output, "no plan does");
  CHECK_EQ(run_plan("--load a.plan b.csv"), 1); /* another problem */
  CHECK_EQ(run_plan("--load a.csv a.csv"), 1);  /* no plan at all */
  CHECK_HAS(output, "a.csv: ");
  CHECK_EQ(run_plan("--load none.plan a.csv"), 1);
  CHECK_HAS(output, "none.plan");
  CHECK_EQ(run_plan("--save nowhere/a.plan a.csv"), 1);
  CHECK_HAS(output, "nowhere/a.plan");
  take_down();
}

/* What is saved for a table is a plan for all of its rows, also those that never live. */
static void a_plan_for_every_row(void) {
  static const char table[] = "id,lower,upper,size\n7,0,2,100\n8,1,1,50\n9,2,4,100\n";
  tarn_plan_problem problem = {.size = sizeof(problem)};
  tarn_plan_buffer *buffers = NULL;
  uint64_t *ids = NULL;
  tarn_plan *plan = NULL;
  if (!set_up()) {
    return;
  }
  CHECK(write_file("e.csv", table));
  CHECK_EQ(run_plan("--json --save e.plan e.csv"), 0);
  CHECK_HAS(output, "\"buffers\": 3");
  CHECK_EQ(run_plan("--json --window 0:4 e.csv"), 0);
  CHECK_HAS(output, "\"buffers\": 2");
  CHECK_EQ(run_plan_after("cat e.plan && :", ""), 0);
  CHECK_OK(tarn_plan_read(table, strlen(table), &buffers, &ids, &problem.count));
  problem.buffers = buffers;
  CHECK_OK(tarn_plan_load(&problem, output, strlen(output), &plan));
  tarn_plan_destroy(plan);
  free(buffers);
  free(ids);
  take_down();
}

/* The title of a drawing is text whatever the file is called. */
static void a_drawing_of_any_name(void) {
  if (!set_up()) {
    return;
  }
  CHECK(write_file("\xc3\xa4<\xff.csv", "id,lower,upper,size\n7,0,2,100\n"));
  CHECK_EQ(run_plan("--svg a.svg *'<'*"), 0);
  CHECK_EQ(run_plan_after("cat a.svg && :", ""), 0);
  CHECK_HAS(output, ">\xc3\xa4__.csv: 1 buffers");
  take_down();
}

/* The axes of a drawing reach as far as what is drawn, also where that is short. */
static void the_axes_of_a_drawing(void) {
  if (!set_up()) {
    return;
  }
  CHECK_EQ(run_plan("--svg a.svg a.csv"), 0); /* time 0 to 4, 150 bytes */
  CHECK_EQ(run_plan_after("cat a.svg && :", ""), 0);
  CHECK_HAS(output, "text-anchor=\"middle\">2</text>");
  CHECK_HAS(output, "text-anchor=\"middle\">4</text>");
  CHECK_HAS(output, "text-anchor=\"end\">150 B</text>");
  take_down();
}

/* A dash is what comes in, a table or a trace; what is packed would have to be read twice. */
static void what_comes_in(void) {
  if (!set_up()) {
    return;
  }
  CHECK_EQ(run_plan_after("cat a.csv |", "-"), 0);
  CHECK_HAS(output, "-: 3 buffers");
  CHECK_HAS(output, "height  150");
  CHECK_EQ(run_plan_after("cat t.trace |", "--json -"), 0);
  CHECK_HAS(output, "\"file\": \"-\", \"buffers\": 3");
  CHECK_EQ(run_plan_after("gzip -c t.trace |", "-"), 1);
  CHECK_HAS(output, "is packed, and no file");
  take_down();
}

static void wrong_use(void) {
  if (!set_up()) {
    return;
  }
  CHECK_EQ(run_plan(""), 2);
  CHECK_HAS(output, "a file is missing");
  CHECK_EQ(run_plan("a.csv b.csv"), 2);
  CHECK_HAS(output, "one file at a time, not 'a.csv' and 'b.csv'");
  CHECK_EQ(run_plan("--bogus a.csv"), 2);
  CHECK_HAS(output, "'--bogus' is not an argument");
  CHECK_EQ(run_plan("--seconds never a.csv"), 2);
  CHECK_EQ(run_plan("--window 3:2 a.csv"), 2);
  CHECK_EQ(run_plan("--capacity 0 a.csv"), 2);
  CHECK_HAS(output, "above 0");
  CHECK_EQ(run_plan("--capacity 20000000000G a.csv"), 2);
  CHECK_HAS(output, "--capacity");
  CHECK_EQ(run_plan("none.csv"), 1);
  CHECK_HAS(output, "none.csv");
  take_down();
}

static const test_case cases[] = {
    {"known answers", known_answers},
    {"a trace with a comment", a_trace_with_a_comment},
    {"from a pipe", from_a_pipe},
    {"saved and loaded", saved_and_loaded},
    {"a plan for every row", a_plan_for_every_row},
    {"a drawing of any name", a_drawing_of_any_name},
    {"the axes of a drawing", the_axes_of_a_drawing},
    {"what comes in", what_comes_in},
    {"wrong use", wrong_use},
};

TEST_MAIN(cases)
