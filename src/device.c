/* SPDX-License-Identifier: MIT
 *
 * The public face of devices and streams. A tarn_device is a port under another name: the public
 * type stays opaque, and nothing is kept beside the port. No locks. */
#include "base/check.h"
#include "base/error.h"
#include "port/port.h"
#include "tarn/tarn.h"

static tarni_port *port_of(tarn_device *device) {
  return (tarni_port *)device;
}

/* ---- Listing -------------------------------------------------------------------------------- */

/* The caller's array, whose elements may be smaller or larger than this version's. */
typedef struct info_list {
  unsigned char *infos;
  size_t stride;
  size_t capacity;
  size_t count;
} info_list;

/* Adds every device of a port. A device that cannot be described is left out: the thread's last
 * error says why. */
static tarn_status list_port(const tarni_port_table *table, info_list *list) {
  int n_devices = 0;
  TARN_TRY(table->count(&n_devices));
  tarn_status result = TARN_OK;
  for (int ordinal = 0; ordinal < n_devices; ordinal++) {
    tarn_device_info info = {.size = sizeof(info)};
    const tarn_status status = table->describe(ordinal, &info);
    if (status != TARN_OK) {
      result = status;
      continue;
    }
    if (list->count < list->capacity) {
      tarn_device_info *slot =
          (tarn_device_info *)(void *)(list->infos + list->count * list->stride);
      slot->size = list->stride;
      TARN_TRY(tarni_struct_out(slot, &info, sizeof(info), "tarn_device_list"));
    }
    list->count++;
  }
  return result;
}

tarn_status tarn_device_list(tarn_device_info *infos, size_t capacity, size_t *count) {
  if (count != NULL) {
    *count = 0;
  }
  if (count == NULL || (infos == NULL && capacity != 0)) {
    return tarni_fail(TARN_INVALID, "tarn_device_list", NULL,
                      "Pass an address for the count, and an array or a capacity of 0.",
                      "%s is NULL", count == NULL ? "the count's address" : "the array");
  }
  info_list list = {.infos = (unsigned char *)infos, .capacity = capacity};
  if (capacity != 0) {
    list.stride = infos[0].size;
    if (list.stride < sizeof(size_t) || list.stride % _Alignof(tarn_device_info) != 0) {
      return tarni_fail(TARN_INVALID, "tarn_device_list", NULL,
                        "Set infos[0].size to sizeof(tarn_device_info) before the call.",
                        "infos[0].size is %zu", list.stride);
    }
  }
  /* A broken driver must not hide the simulated GPU: its error stays this thread's last error. */
  (void)list_port(&tarni_port_cuda, &list);
  TARN_TRY(list_port(&tarni_port_sim, &list));
  *count = list.count;
  return TARN_OK;
}

/* ---- Devices -------------------------------------------------------------------------------- */

tarn_status tarn_device_open(const char *name, tarn_device **device) {
  if (device == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_device_open", NULL, "Pass an address for it.",
                      "the device's address is NULL");
  }
  *device = NULL;
  tarni_port *port;
  TARN_TRY(tarni_port_open(name, &port));
  *device = (tarn_device *)port;
  return TARN_OK;
}

void tarn_device_close(tarn_device *device) {
  tarni_port_close(port_of(device));
}

static tarn_status need_device(const tarn_device *device, const char *operation) {
  if (device == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Open one with tarn_device_open.",
                      "the device is NULL");
  }
  return TARN_OK;
}

tarn_status tarn_device_get_info(tarn_device *device, tarn_device_info *info) {
  const tarn_device_info empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(info, &empty, sizeof(empty), "tarn_device_get_info"));
  TARN_TRY(need_device(device, "tarn_device_get_info"));
  tarn_device_info full = port_of(device)->device;
  uint64_t total_bytes;
  TARN_TRY(tarni_port_info(port_of(device), &full.free_bytes, &total_bytes));
  return tarni_struct_out(info, &full, sizeof(full), "tarn_device_get_info");
}

tarn_status tarn_device_get_calls(tarn_device *device, tarn_call_counts *counts) {
  tarn_call_counts full = {.size = sizeof(full)};
  TARN_TRY(tarni_struct_out(counts, &full, sizeof(full), "tarn_device_get_calls"));
  TARN_TRY(need_device(device, "tarn_device_get_calls"));
  tarni_port *port = port_of(device);
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    full.calls[i] = atomic_load_explicit(&port->calls[i], memory_order_relaxed);
    full.nanoseconds[i] = atomic_load_explicit(&port->nanoseconds[i], memory_order_relaxed);
  }
  return tarni_struct_out(counts, &full, sizeof(full), "tarn_device_get_calls");
}

/* ---- Streams and work ----------------------------------------------------------------------- */

tarn_status tarn_stream_create(tarn_device *device, tarn_stream *stream) {
  return tarni_port_stream_create(port_of(device), stream);
}

tarn_status tarn_stream_destroy(tarn_device *device, tarn_stream stream) {
  return tarni_port_stream_destroy(port_of(device), stream);
}

tarn_status tarn_stream_synchronize(tarn_device *device, tarn_stream stream) {
  return tarni_port_stream_sync(port_of(device), stream);
}

tarn_status tarn_device_copy(tarn_device *device, tarn_ptr destination, tarn_ptr source,
                             size_t bytes, tarn_stream stream) {
  return tarni_port_copy(port_of(device), destination, source, bytes, stream);
}

tarn_status tarn_device_fill(tarn_device *device, tarn_ptr destination, uint8_t value, size_t bytes,
                             tarn_stream stream) {
  return tarni_port_fill(port_of(device), destination, value, bytes, stream);
}
