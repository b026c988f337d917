/* SPDX-License-Identifier: MIT
 *
 * Batches of copies on the simulated GPU: copies of one batch that touch the same bytes are
 * refused, by whatever addresses they reach them, and no others. Random batches against a model
 * that looks at every pair of bytes. */
#include "base/rng.h"
#include "port/port.h"
#include "port/sim/sim.h"
#include "support/test.h"

/* Two chunks, the first of them mapped twice; seen from the end of one mapping to the start of the
 * next, a few bytes of each. */
enum { GRANULE = 4096, N_PLACES = 4, NEAR = 24, MOST_COPIES = 6, LONGEST = 9 };

static tarn_device *device;
static tarni_port *port;
static tarn_stream stream;
static tarn_ptr base;
static tarni_chunk chunks[3];
static int n_findings;
static const int chunk_at[N_PLACES] = {0, 1, 0, 2};

static void on_finding(const tarn_sim_finding *finding, void *user) {
  (void)user;
  n_findings += finding->kind == TARN_SIM_MISUSE ? 1 : 1000;
}

static bool open_device(void) {
  n_findings = 0;
  if (!CHECK_OK(tarn_device_open("sim:1G,granularity=4K,order=eager", &device))) {
    return false;
  }
  port = (tarni_port *)device;
  bool is_good = CHECK_OK(tarn_sim_set_on_finding(device, on_finding, NULL)) &&
                 CHECK_OK(tarni_port_stream_create(port, &stream)) &&
                 CHECK_OK(tarni_port_reserve(port, (uint64_t)N_PLACES * GRANULE, 0, &base));
  for (int i = 0; i < 3; i++) {
    is_good = is_good && CHECK_OK(tarni_port_create(port, GRANULE, &chunks[i]));
  }
  for (int i = 0; is_good && i < N_PLACES; i++) {
    is_good =
        CHECK_OK(tarni_port_map(port, base + (uint64_t)i * GRANULE, GRANULE, chunks[chunk_at[i]]));
  }
  return is_good && CHECK_OK(tarni_port_access(port, base, (uint64_t)N_PLACES * GRANULE));
}

static void close_device(void) {
  n_findings = 0;
  CHECK_OK(tarni_port_stream_sync(port, stream));
  CHECK_OK(tarni_port_unmap(port, base, (uint64_t)N_PLACES * GRANULE));
  CHECK_OK(tarni_port_unreserve(port, base, (uint64_t)N_PLACES * GRANULE));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarni_port_release(port, chunks[i]));
  }
  CHECK_OK(tarni_port_stream_destroy(port, stream));
  tarn_device_close(device);
  CHECK_EQ(n_findings, 0);
}

/* A byte by what it is. */
static uint64_t byte_at(tarn_ptr address) {
  const uint64_t offset = address - base;
  return (uint64_t)chunk_at[offset / GRANULE] * GRANULE + offset % GRANULE;
}

static bool meet(tarn_ptr a, uint64_t a_size, tarn_ptr b, uint64_t b_size) {
  for (uint64_t i = 0; i < a_size; i++) {
    for (uint64_t k = 0; k < b_size; k++) {
      if (byte_at(a + i) == byte_at(b + k)) {
        return true;
      }
    }
  }
  return false;
}

static bool model_conflict(const tarni_copy *copies, uint64_t count) {
  for (uint64_t i = 0; i < count * count; i++) {
    const tarni_copy *a = &copies[i / count], *b = &copies[i % count];
    if (a != b && (meet(a->destination, a->size, b->destination, b->size) ||
                   meet(a->destination, a->size, b->source, b->size))) {
      return true;
    }
  }
  return false;
}

static tarn_ptr random_address(tarni_rng *rng) {
  const uint64_t border = (1 + tarni_rng_below(rng, N_PLACES - 1)) * GRANULE;
  return base + border - NEAR / 2 + tarni_rng_below(rng, NEAR);
}

static void random_batches(void) {
  tarni_rng rng = {.state = 5};
  int n_refused = 0, n_taken = 0;
  REQUIRE(open_device());
  for (int i = 0; i < 20000 && !test_case_failed(); i++) {
    tarni_copy copies[MOST_COPIES];
    const uint64_t count = 2 + tarni_rng_below(&rng, MOST_COPIES - 1);
    for (uint64_t k = 0; k < count; k++) {
      copies[k] = (tarni_copy){.destination = random_address(&rng),
                               .source = random_address(&rng),
                               .size = 1 + tarni_rng_below(&rng, LONGEST)};
    }
    const bool is_wrong = model_conflict(copies, count);
    CHECK_STATUS(tarni_port_copy_batch(port, copies, count, stream, TARNI_COPY_FAST),
                 is_wrong ? TARN_INVALID : TARN_OK);
    n_refused += is_wrong;
    n_taken += !is_wrong;
    CHECK_EQ(n_findings, n_refused);
  }
  test_note("%d batches taken, %d refused", n_taken, n_refused);
  CHECK(n_taken > 1000 && n_refused > 1000);
  close_device();
}

/* Every pair of so many would take minutes. */
static void large_batch(void) {
  enum { COUNT = 200000 };
  static tarni_copy copies[COUNT];
  tarn_ptr block;
  REQUIRE(open_device());
  REQUIRE_OK(tarni_port_plain_alloc(port, (uint64_t)COUNT * 32, &block));
  for (uint64_t i = 0; i < COUNT; i++) {
    copies[i] =
        (tarni_copy){.destination = block + i * 32, .source = block + i * 32 + 16, .size = 16};
  }
  CHECK_OK(tarni_port_copy_batch(port, copies, COUNT, stream, TARNI_COPY_FAST));
  copies[COUNT - 1].destination = copies[0].source + 15;
  CHECK_STATUS(tarni_port_copy_batch(port, copies, COUNT, stream, TARNI_COPY_FAST), TARN_INVALID);
  CHECK_OK(tarni_port_plain_free(port, block));
  close_device();
}

static void batch_without_memory(void) {
  REQUIRE(open_device());
  const tarni_copy copies[2] = {
      {.destination = base, .source = base + GRANULE, .size = 8},
      {.destination = base + 8, .source = base + GRANULE + 8, .size = 8},
  };
  tarni_sim_store_fail(1);
  CHECK_STATUS(tarni_port_copy_batch(port, copies, 2, stream, TARNI_COPY_FAST), TARN_HOST_MEMORY);
  tarni_sim_store_fail(0);
  CHECK_OK(tarni_port_copy_batch(port, copies, 2, stream, TARNI_COPY_FAST));
  close_device();
}

static const test_case cases[] = {
    {"random batches", random_batches},
    {"a large batch", large_batch},
    {"a batch without memory", batch_without_memory},
};

TEST_MAIN(cases)
