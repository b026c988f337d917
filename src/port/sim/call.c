/* SPDX-License-Identifier: MIT
 *
 * What every call of the simulated driver begins and ends with: the lock, the call's cost on the
 * virtual clock, the fault plan, the sticky error. Owns the lock, the world and the price list. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/bits.h"
#include "port/sim/sim.h"

/* The analyzer's view of these (sim.h) is for their callers. */
#undef tarni_sim_fail_code
#undef tarni_sim_no_host_memory
#undef tarni_sim_misuse

static tarni_lock sim_lock = TARNI_LOCK_INIT(TARNI_RANK_SIM);
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

sim_world tarni_sim_world;

/* The lock may be held by a thread that the child does not have, in the middle of a change. The
 * devices are its parent's, refused to it, and their work is the parent's to do; it may open
 * others, in a world of their own. */
static void begin_anew_in_child(void) {
  tarni_lock_init(&sim_lock, TARNI_RANK_SIM);
  tarni_sim_world = (sim_world){.last_stream_id = tarni_sim_world.last_stream_id,
                                .last_capture_id = tarni_sim_world.last_capture_id};
}

static void watch_forks(void) {
  (void)pthread_atfork(NULL, NULL, begin_anew_in_child);
}

void tarni_sim_watch_forks(void) {
  (void)pthread_once(&watch_once, watch_forks);
}

/* What a call costs on an H200, in nanoseconds: a base, and a part for each whole MiB that is
 * charged when the call succeeds (for ACCESS and UNMAP the base counts for every mapping
 * concerned). docs/sim.md has the list. */
typedef struct call_price {
  uint32_t base_ns;
  uint32_t per_mib_ns;
} call_price;

static const call_price prices[TARN_CALL_COUNT] = {
    [TARN_CALL_INFO] = {4400, 0},
    [TARN_CALL_RESERVE] = {6500, 0},
    [TARN_CALL_UNRESERVE] = {6500, 0},
    [TARN_CALL_CREATE] = {13000, 0},
    [TARN_CALL_RELEASE] = {15000, 400},
    [TARN_CALL_MAP] = {1500, 0},
    [TARN_CALL_ACCESS] = {33000, 0},
    [TARN_CALL_UNMAP] = {22000, 0},
    [TARN_CALL_EXPORT] = {20000, 0},
    [TARN_CALL_IMPORT] = {20000, 0},
    [TARN_CALL_PLAIN_ALLOC] = {32000, 300},
    [TARN_CALL_PLAIN_FREE] = {32000, 300},
    [TARN_CALL_POOL_CREATE] = {30000, 0},
    [TARN_CALL_POOL_DESTROY] = {30000, 0},
    [TARN_CALL_POOL_TRIM] = {20000, 0},
    [TARN_CALL_POOL_ALLOC] = {350, 0},
    [TARN_CALL_POOL_FREE] = {320, 0},
    [TARN_CALL_HOST_ALLOC] = {450000, 540000},
    [TARN_CALL_HOST_FREE] = {450000, 35000},
    [TARN_CALL_HOST_REGISTER] = {30000, 20000},
    [TARN_CALL_HOST_UNREGISTER] = {30000, 10000},
    [TARN_CALL_STREAM_CREATE] = {5000, 0},
    [TARN_CALL_STREAM_DESTROY] = {5000, 0},
    [TARN_CALL_STREAM_ID] = {20, 0},
    [TARN_CALL_STREAM_QUERY] = {200, 0},
    [TARN_CALL_STREAM_SYNC] = {1000, 0},
    [TARN_CALL_EVENT_CREATE] = {115, 0},
    [TARN_CALL_EVENT_DESTROY] = {110, 0},
    [TARN_CALL_EVENT_RECORD] = {210, 0},
    [TARN_CALL_EVENT_QUERY] = {150, 0},
    [TARN_CALL_EVENT_SYNC] = {1000, 0},
    [TARN_CALL_EVENT_WAIT] = {155, 0},
    [TARN_CALL_CAPTURE_STATE] = {22, 0},
    [TARN_CALL_CAPTURE_BEGIN] = {1000, 0},
    [TARN_CALL_CAPTURE_END] = {1000, 0},
    [TARN_CALL_GRAPH_INSTANTIATE] = {20000, 0},
    [TARN_CALL_GRAPH_LAUNCH] = {2500, 0},
    [TARN_CALL_GRAPH_DESTROY] = {5000, 0},
    [TARN_CALL_COPY] = {1000, 0},
    [TARN_CALL_COPY_SYNC] = {5000, 0},
    [TARN_CALL_FILL] = {1000, 0},
    [TARN_CALL_FILL_SYNC] = {3000, 0},
    [TARN_CALL_VALUE_WRITE] = {1000, 0},
    [TARN_CALL_VALUE_WAIT] = {1000, 0},
    [TARN_CALL_COPY_BATCH] = {1000, 0},
    [TARN_CALL_CAPTURE_NODES] = {25, 0},
    [TARN_CALL_NODE_BEFORE] = {30, 0},
};

void tarni_sim_lock(void) {
  tarni_lock_acquire(&sim_lock);
}

void tarni_sim_unlock(void) {
  tarni_lock_release(&sim_lock);
}

uint64_t tarni_sim_thread(void) {
  static _Atomic uint64_t last_thread;
  static _Thread_local uint64_t thread;
  if (thread == 0) {
    thread = atomic_fetch_add(&last_thread, 1) + 1;
  }
  return thread;
}

/* Whether the fault plan strikes this call; its code stays until there is a new plan. */
static bool fault_strikes(sim_device *device, tarn_call call) {
  sim_fault *fault = &device->fault;
  if (fault->nth == 0 || (fault->call != TARN_CALL_COUNT && fault->call != call)) {
    return false;
  }
  if (fault->nth > 1) {
    fault->nth--;
    return false;
  }
  device->n_faults++;
  if (!fault->is_endless && --fault->times == 0) {
    fault->nth = 0;
  }
  return true;
}

void tarni_sim_charge_ns(sim_device *device, tarn_call call, uint64_t nanoseconds) {
  device->now_ns = tarni_add_capped(device->now_ns, nanoseconds);
  tarni_port_count_ns(&device->port, call, nanoseconds);
}

void tarni_sim_charge(sim_device *device, tarn_call call, uint64_t n_more, uint64_t size) {
  const call_price *price = &prices[call];
  tarni_sim_charge_ns(device, call, n_more * price->base_ns + (size >> 20) * price->per_mib_ns);
}

const char *tarni_sim_entry(tarn_call call) {
  static const char *const entries[TARN_CALL_COUNT] = {
#define CALL_ENTRY(name, text, entry) [TARN_CALL_##name] = entry,
      TARN_CALL_MAP(CALL_ENTRY)
#undef CALL_ENTRY
  };
  return entries[call];
}

tarn_status tarni_sim_begin(sim_device *device, tarn_call call, uint64_t size) {
  tarni_sim_lock();
  device->now_ns = tarni_add_capped(device->now_ns, prices[call].base_ns);
  tarni_port_count(&device->port, call, prices[call].base_ns);
  tarn_status status = tarni_sim_broken(device, tarni_sim_entry(call));
  if (status == TARN_OK && fault_strikes(device, call)) {
    const int code = device->fault.code;
    if (tarni_sim_code_is_sticky(code)) {
      tarni_sim_break(device, code);
    }
    status = tarni_sim_fail_code(device, code, tarni_sim_entry(call), size);
  }
  if (status != TARN_OK) {
    tarni_sim_unlock();
  }
  return status;
}

tarn_status tarni_sim_end(sim_device *device, tarn_status status) {
  tarni_sim_tick(device);
  tarni_sim_unlock();
  return status;
}
