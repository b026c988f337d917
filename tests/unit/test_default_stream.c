/* SPDX-License-Identifier: MIT
 *
 * What was made on the default stream of one thread, and is given back by another, for which the
 * same handle means another stream: the oracle watches who gets the memory next. */
#include <pthread.h>

#include "port/port.h"
#include "support/dock.h"
#include "support/test.h"
#include "tarn/budget.h"

enum { BYTES = 8 << 20, STAGED = 64 << 10 };
#define DEVICE "sim:64M,order=lazy"
#define OWN TARNI_STREAM_PER_THREAD

typedef struct errand {
  rig *rig;
  tarn_scope *scope;
  tarn_budget *budget;
  dock *dock;
  tarn_batch *batch;
} errand;

static void in_thread(void *(*run)(void *), errand *e) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, run, e) == 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* Uses memory on the default stream of the calling thread, and gives it back there. */
static void use_memory(rig *r) {
  rig_block block;
  CHECK_OK(rig_alloc(r, BYTES, OWN, &block));
  CHECK_OK(rig_free(r, &block, OWN));
}

/* ---- Scopes ---- */

static void *scope_end(void *user) {
  errand *e = user;
  CHECK_OK(tarn_scope_destroy(e->scope));
  use_memory(e->rig);
  return NULL;
}

/* Fills a slot and leaves a kernel pending that uses it. */
static void scope_fill(errand *e) {
  rig_block block;
  tarn_ptr address = 0;
  CHECK_OK(tarn_scope_create(e->rig->heap, 1, OWN, &e->scope));
  CHECK_OK(tarn_scope_alloc(e->scope, 0, BYTES, &address));
  rig_own(e->rig, address, BYTES, &block);
  rig_touch(e->rig, &block, OWN, true);
  CHECK_OK(tarn_sim_disown(e->rig->device, address, BYTES));
}

static void *scope_fill_and_go(void *user) {
  scope_fill(user);
  return NULL;
}

static void scope_of_another_thread(void) {
  rig r;
  errand e = {.rig = &r};
  REQUIRE(rig_open(&r, DEVICE, NULL, 0));
  scope_fill(&e);
  in_thread(scope_end, &e);
  in_thread(scope_fill_and_go, &e); /* its thread is gone when it ends */
  (void)scope_end(&e);
  rig_close(&r);
}

/* ---- Budgets ---- */

static void *budget_end(void *user) {
  errand *e = user;
  CHECK_OK(tarn_budget_destroy(e->budget));
  use_memory(e->rig);
  return NULL;
}

static void budget_of_another_thread(void) {
  rig r;
  errand e = {.rig = &r};
  const uint64_t bytes = BYTES;
  REQUIRE(rig_open(&r, DEVICE, NULL, 0));
  use_memory(&r); /* what the budget gets has work pending */
  CHECK_OK(tarn_budget_create(r.heap, &bytes, 1, OWN, NULL, &e.budget));
  in_thread(budget_end, &e);
  rig_close(&r);
}

/* ---- Pinned memory ---- */

/* Writes all that the pool has by the host, and again by the thread's own stream. */
static void use_pinned(dock *d) {
  void *blocks[32];
  for (int i = 0; i < 32; i++) {
    CHECK_OK(tarn_pinned_alloc(d->pool, STAGED, &blocks[i]));
    CHECK_OK(tarn_device_fill(d->rig.device, (uintptr_t)blocks[i], 0x33, STAGED, OWN));
  }
  for (int i = 0; i < 32; i++) {
    CHECK_OK(tarn_pinned_free_on(d->pool, blocks[i], OWN));
  }
}

static void *batch_end(void *user) {
  errand *e = user;
  CHECK_STATUS(tarn_batch_fetch(e->batch, OWN, NULL), TARN_STATE); /* another stream */
  CHECK_OK(tarn_batch_destroy(e->batch));
  CHECK_OK(tarn_copier_stream_retire(e->dock->copier, OWN));
  CHECK_OK(tarn_stream_synchronize(e->dock->rig.device, OWN));
  use_pinned(e->dock);
  return NULL;
}

/* A fetch has failed, and n driver calls with it: all of them, then nothing is known but the stream
 * and its thread. */
static void batch_of_another_thread(void) {
  for (uint64_t n = 1; n <= 1000; n += 999) {
    dock d;
    tarn_ptr block = 0;
    REQUIRE(dock_open(&d, DEVICE, NULL, 2 << 20, 0));
    errand e = {.rig = &d.rig, .dock = &d};
    CHECK_OK(tarn_alloc(d.rig.heap, STAGED, OWN, &block));
    CHECK_OK(tarn_device_fill(d.rig.device, block, 0x77, STAGED, OWN));
    CHECK_OK(tarn_batch_create(d.copier, NULL, &e.batch));
    CHECK_OK(tarn_batch_output(e.batch, block, STAGED, NULL));
    CHECK_OK(tarn_sim_fail(d.rig.device, TARN_CALL_COUNT, 3, n, 999)); /* after the copies */
    CHECK_STATUS(tarn_batch_fetch(e.batch, OWN, NULL), TARN_DRIVER);
    CHECK_OK(tarn_sim_fail(d.rig.device, TARN_CALL_COUNT, 0, 0, 0));
    in_thread(batch_end, &e);
    CHECK_OK(tarn_free(d.rig.heap, block, OWN));
    dock_close(&d);
  }
}

/* What could not be given back when its copy failed is in quarantine for the thread's stream: the
 * same handle of another thread is none of its business. */
static void *retire_own(void *user) {
  errand *e = user;
  CHECK_OK(tarn_copier_stream_retire(e->dock->copier, OWN));
  CHECK(dock_stats(e->dock).quarantined_bytes != 0);
  return NULL;
}

static void quarantine_of_a_thread(void) {
  dock d;
  tarn_ptr block = 0;
  static uint8_t bytes[STAGED];
  REQUIRE(dock_open(&d, DEVICE, NULL, 2 << 20, 0));
  errand e = {.rig = &d.rig, .dock = &d};
  CHECK_OK(tarn_alloc(d.rig.heap, STAGED, OWN, &block));
  CHECK_OK(tarn_copy_in(d.copier, block, bytes, STAGED, OWN)); /* from here on memory is there */
  CHECK_OK(tarn_sim_fail(d.rig.device, TARN_CALL_COUNT, 3, 1000, 999)); /* after the copy */
  CHECK_STATUS(tarn_copy_in(d.copier, block, bytes, STAGED, OWN), TARN_DRIVER);
  CHECK_OK(tarn_sim_fail(d.rig.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK(dock_stats(&d).quarantined_bytes != 0);
  in_thread(retire_own, &e);
  CHECK_OK(tarn_copier_stream_retire(d.copier, OWN));
  CHECK_EQ(dock_stats(&d).quarantined_bytes, 0);
  CHECK_OK(tarn_free(d.rig.heap, block, OWN));
  dock_close(&d);
}

static const test_case cases[] = {
    {"scope_of_another_thread", scope_of_another_thread},
    {"budget_of_another_thread", budget_of_another_thread},
    {"batch_of_another_thread", batch_of_another_thread},
    {"quarantine_of_a_thread", quarantine_of_a_thread},
};

TEST_MAIN(cases)
