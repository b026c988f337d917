/* SPDX-License-Identifier: MIT
 *
 * The codes of the simulated driver: what each means to tarn, as it does on the cuda port, which of
 * them break the device for good, and how a failure is reported. One table, no state. */
#include <string.h>

#include "port/sim/sim.h"

/* The analyzer's view of these (sim.h) is for their callers. */
#undef tarni_sim_fail_code
#undef tarni_sim_no_host_memory
#undef tarni_sim_misuse

/* Codes from first to last. */
typedef struct code_facts {
  int first, last;
  tarn_status status;
  const char *name;
  const char *remedy;
} code_facts;

static const char lost_remedy[] =
    "An earlier operation broke the device; close it and open it anew.";

static const code_facts code_table[] = {
    {1, 1, TARN_INVALID, "CUDA_ERROR_INVALID_VALUE", "Check the arguments of the call."},
    {2, 2, TARN_DEVICE_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY",
     "Free memory, lower the limits of other users of the device, or ask for less."},
    {4, 4, TARN_DEVICE_LOST, "CUDA_ERROR_DEINITIALIZED", lost_remedy},
    {34, 34, TARN_NO_DRIVER, "CUDA_ERROR_STUB_LIBRARY", "Use a real driver."},
    {100, 100, TARN_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "Use a device that is listed."},
    {101, 101, TARN_NO_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "Use a device that is listed."},
    {214, 214, TARN_DEVICE_LOST, "CUDA_ERROR_ECC_UNCORRECTABLE", lost_remedy},
    {220, 220, TARN_DEVICE_LOST, "CUDA_ERROR_NVLINK_UNCORRECTABLE", lost_remedy},
    {226, 226, TARN_DEVICE_LOST, "CUDA_ERROR_CONTAINED", lost_remedy},
    {400, 400, TARN_INVALID, "CUDA_ERROR_INVALID_HANDLE", "Use only handles that exist."},
    {401, 401, TARN_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "Begin a capture before it is ended, and once."},
    {600, 600, TARN_NOT_READY, "CUDA_ERROR_NOT_READY", "Ask again later."},
    {700, 700, TARN_DEVICE_LOST, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "An earlier operation used memory that was not there; close the device and open it anew."},
    {702, 702, TARN_DEVICE_LOST, "CUDA_ERROR_LAUNCH_TIMEOUT", lost_remedy},
    {709, 709, TARN_DEVICE_LOST, "CUDA_ERROR_CONTEXT_IS_DESTROYED", lost_remedy},
    {710, 710, TARN_DEVICE_LOST, "CUDA_ERROR_ASSERT", lost_remedy},
    {712, 712, TARN_STATE, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "Register a range once."},
    {713, 713, TARN_STATE, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "Unregister only what was registered, by its first address."},
    {714, 719, TARN_DEVICE_LOST, "CUDA_ERROR_LAUNCH_FAILED", lost_remedy},
    {721, 721, TARN_DEVICE_LOST, "CUDA_ERROR_TENSOR_MEMORY_LEAK", lost_remedy},
    {801, 801, TARN_UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED",
     "Map a chunk whole, and use only what the device's capabilities name."},
    {804, 804, TARN_DRIVER_OLD, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "Update the driver."},
    {810, 810, TARN_DEVICE_LOST, "CUDA_ERROR_MPS_CLIENT_TERMINATED", lost_remedy},
    {900, 900, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "Make this call before the capture begins or after it has ended."},
    {901, 901, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "An earlier call broke the capture: end it and begin anew."},
    {902, 902, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "Keep two captures apart: one must not wait for the other."},
    {903, 903, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "End a capture on the stream on which it began."},
    {904, 904, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "Let the first stream wait for an event of every other before the capture is ended."},
    {905, 905, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "Let a capturing stream wait only for events recorded in the same capture."},
    {906, 906, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "Leave the legacy default stream alone while a thread's default stream is captured."},
    {907, 907, TARN_CAPTURE, "CUDA_ERROR_CAPTURED_EVENT",
     "Do not ask or await an event that was recorded in a capture."},
    {908, 908, TARN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "End a capture on the thread that began it, or begin it in relaxed mode."},
    {911, 911, TARN_DEVICE_LOST, "CUDA_ERROR_EXTERNAL_DEVICE", lost_remedy},
};

static const code_facts *code_find(int code) {
  static const code_facts unlisted = {0, 0, TARN_DRIVER, "CUDA_ERROR_UNKNOWN",
                                      "See the driver's documentation of this code."};
  for (unsigned i = 0; i < sizeof(code_table) / sizeof(code_table[0]); i++) {
    if (code >= code_table[i].first && code <= code_table[i].last) {
      return &code_table[i];
    }
  }
  return &unlisted;
}

bool tarni_sim_code_is_sticky(int code) {
  return code_find(code)->status == TARN_DEVICE_LOST;
}

bool tarni_sim_code_can_fail(int code, tarn_call call) {
  return code != SIM_CUDA_NOT_READY || call == TARN_CALL_STREAM_QUERY ||
         call == TARN_CALL_EVENT_QUERY;
}

/* Shortage of what the entry gives out. */
static tarn_status shortage_of(const char *entry) {
  if (strcmp(entry, tarni_sim_entry(TARN_CALL_RESERVE)) == 0) {
    return TARN_ADDRESS_SPACE;
  }
  for (tarn_call call = TARN_CALL_HOST_ALLOC; call <= TARN_CALL_HOST_UNREGISTER; call++) {
    if (strcmp(entry, tarni_sim_entry(call)) == 0) {
      return TARN_HOST_MEMORY;
    }
  }
  return TARN_DEVICE_MEMORY;
}

tarn_status tarni_sim_fail_code(sim_device *device, int code, const char *entry, uint64_t size) {
  const code_facts *known = code_find(code);
  const tarn_status status = code == SIM_CUDA_OUT_OF_MEMORY ? shortage_of(entry) : known->status;
  if (status == TARN_NOT_READY) {
    return status;
  }
  const tarni_facts facts = {.device = device->port.device.name,
                             .requested_bytes = size,
                             .available_bytes =
                                 device->config.capacity_bytes - device->created_bytes,
                             .driver_code = code,
                             .driver_name = known->name};
  return tarni_fail(
      status, entry, &facts, known->remedy,
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

void tarni_sim_break(sim_device *device, int code) {
  if (device->sticky_code == 0) {
    device->sticky_code = code;
  }
}

tarn_status tarni_sim_broken(sim_device *device, const char *entry) {
  return device->sticky_code == 0 ? TARN_OK
                                  : tarni_sim_fail_code(device, device->sticky_code, entry, 0);
}
