/* SPDX-License-Identifier: MIT
 *
 * What every call of the simulated driver begins and ends with: the lock, the call's cost on the
 * virtual clock, the fault plan, the sticky error; and how a failure is reported. Owns the lock and
 * the price list. */
#include <stdio.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

/* The analyzer's view of these (sim.h) is for their callers. */
#undef tarni_sim_fail_code
#undef tarni_sim_no_host_memory
#undef tarni_sim_misuse

static tarni_lock sim_lock = TARNI_LOCK_INIT(TARNI_RANK_SIM);

sim_world tarni_sim_world;

/* What a call costs on an H200, in nanoseconds: a base, and a part for each MiB (for ACCESS and
 * UNMAP the base counts for every mapping concerned). docs/results has the measurements. */
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
    [TARN_CALL_HOST_ALLOC] = {400000, 676000},
    [TARN_CALL_HOST_FREE] = {400000, 100000},
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
};

void tarni_sim_lock(void) {
  tarni_lock_acquire(&sim_lock);
}

void tarni_sim_unlock(void) {
  tarni_lock_release(&sim_lock);
}

const void *tarni_sim_thread(void) {
  static _Thread_local char token;
  return &token;
}

typedef struct code_facts {
  int code;
  tarn_status status;
  const char *name;
  const char *remedy;
} code_facts;

static const code_facts *code_find(int code) {
  static const code_facts table[] = {
      {SIM_CUDA_INVALID_VALUE, TARN_INVALID, "CUDA_ERROR_INVALID_VALUE",
       "Check the arguments of the call."},
      {SIM_CUDA_OUT_OF_MEMORY, TARN_DEVICE_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY",
       "Free memory, lower the limits of other users of the device, or ask for less."},
      {SIM_CUDA_INVALID_HANDLE, TARN_INVALID, "CUDA_ERROR_INVALID_HANDLE",
       "Use only handles that exist."},
      {SIM_CUDA_ILLEGAL_STATE, TARN_STATE, "CUDA_ERROR_ILLEGAL_STATE",
       "Begin a capture before it is ended, and once."},
      {SIM_CUDA_ILLEGAL_ADDRESS, TARN_DEVICE_LOST, "CUDA_ERROR_ILLEGAL_ADDRESS",
       "An earlier operation used memory that was not there; close the device and open it anew."},
      {SIM_CUDA_ALREADY_REGISTERED, TARN_STATE, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
       "Register a range once."},
      {SIM_CUDA_NOT_REGISTERED, TARN_STATE, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
       "Unregister only what was registered, by its first address."},
      {SIM_CUDA_NOT_SUPPORTED, TARN_UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED",
       "Map a chunk whole, and use only what the device's capabilities name."},
      {SIM_CUDA_CAPTURE_UNSUPPORTED, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
       "Make this call before the capture begins or after it has ended."},
      {SIM_CUDA_CAPTURE_INVALIDATED, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
       "An earlier call broke the capture: end it and begin anew."},
      {SIM_CUDA_CAPTURE_MERGE, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
       "Keep two captures apart: one must not wait for the other."},
      {SIM_CUDA_CAPTURE_UNMATCHED, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
       "End a capture on the stream on which it began."},
      {SIM_CUDA_CAPTURE_UNJOINED, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
       "Let the first stream wait for an event of every other before the capture is ended."},
      {SIM_CUDA_CAPTURE_ISOLATION, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
       "Let a capturing stream wait only for events recorded in the same capture."},
      {SIM_CUDA_CAPTURED_EVENT, TARN_CAPTURE, "CUDA_ERROR_CAPTURED_EVENT",
       "Do not ask or await an event that was recorded in a capture."},
      {SIM_CUDA_CAPTURE_WRONG_THREAD, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
       "End a capture on the thread that began it, or begin it in relaxed mode."},
      {0, TARN_DRIVER, "CUDA_ERROR_UNKNOWN", "See the driver's documentation of this code."},
  };
  const code_facts *facts = table;
  while (facts->code != 0 && facts->code != code) {
    facts++;
  }
  return facts;
}

tarn_status tarni_sim_fail_code(sim_device *device, int code, const char *entry, uint64_t size) {
  const code_facts *known = code_find(code);
  const tarni_facts facts = {.device = device->port.device.name,
                             .requested_bytes = size,
                             .available_bytes =
                                 device->config.capacity_bytes - device->created_bytes,
                             .driver_code = code,
                             .driver_name = known->name};
  return tarni_fail(
      known->status, entry, &facts, known->remedy,
      "the driver of %s answered %d (%s); asked for %llu bytes, %llu of %llu are free",
      device->port.device.name, code, known->name, (unsigned long long)size,
      (unsigned long long)facts.available_bytes, (unsigned long long)device->config.capacity_bytes);
}

tarn_status tarni_sim_no_host_memory(sim_device *device, const char *entry) {
  const tarni_facts facts = {.device = device->port.device.name};
  return tarni_fail(
      TARN_HOST_MEMORY, entry, &facts,
      "Give the process more memory or mappings (vm.max_map_count), or simulate less.",
      "the host has no memory left for the simulated GPU");
}

tarn_status tarni_sim_no_addresses(sim_device *device, uint64_t size) {
  const tarni_facts facts = {.device = device->port.device.name, .requested_bytes = size};
  return tarni_fail(TARN_ADDRESS_SPACE, "cuMemAddressReserve", &facts,
                    "Reserve less, or raise the process's limit (ulimit -v).",
                    "the process has no %llu bytes of addresses in one piece",
                    (unsigned long long)size);
}

tarn_status tarni_sim_misuse(sim_device *device, int code, const char *entry, const char *what,
                             uint64_t value) {
  tarn_sim_finding finding = {.kind = TARN_SIM_MISUSE, .address = value};
  tarni_sim_oracle_find(device, &finding, "%s: %s (0x%llx)", entry, what,
                        (unsigned long long)value);
  return tarni_sim_fail_code(device, code, entry, 0);
}

/* Whether the fault plan strikes this call. */
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

static uint64_t price_of(tarn_call call, uint64_t size) {
  const call_price *price = &prices[call];
  return price->base_ns + (uint64_t)price->per_mib_ns * (size >> 20);
}

/* Counted once for the call by tarni_sim_begin; this adds time alone. */
void tarni_sim_charge(sim_device *device, tarn_call call, uint64_t size) {
  const uint64_t cost = price_of(call, size);
  device->now_ns += cost;
  atomic_fetch_add_explicit(&device->port.nanoseconds[call], cost, memory_order_relaxed);
}

static const char *entry_of(tarn_call call) {
  static const char *const entries[TARN_CALL_COUNT] = {
#define CALL_ENTRY(name, text, entry) [TARN_CALL_##name] = entry,
      TARN_CALL_MAP(CALL_ENTRY)
#undef CALL_ENTRY
  };
  return entries[call];
}

tarn_status tarni_sim_begin(sim_device *device, tarn_call call, uint64_t size) {
  tarni_sim_lock();
  /* The cost of these is known only once it is known what they are done to. */
  const bool is_charged_later =
      call == TARN_CALL_ACCESS || call == TARN_CALL_UNMAP || call == TARN_CALL_RELEASE;
  const uint64_t cost = is_charged_later ? 0 : price_of(call, size);
  device->now_ns += cost;
  tarni_port_count(&device->port, call, cost);
  tarn_status status = TARN_OK;
  if (device->sticky_code != 0) {
    status = tarni_sim_fail_code(device, device->sticky_code, entry_of(call), size);
  } else if (fault_strikes(device, call)) {
    status = tarni_sim_fail_code(device, device->fault.code, entry_of(call), size);
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
