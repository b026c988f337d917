/* SPDX-License-Identifier: MIT
 *
 * Devices of the cuda port: counting, describing, opening with a context, closing, and the table.
 * Owns the port's struct. No locks: the registry of open devices opens each of them once. */
#include <stdio.h>
#include <stdlib.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

static tarn_status fail_device(int ordinal, const char *operation, tarni_cu_result code) {
  char name[32];
  (void)snprintf(name, sizeof(name), "cuda:%d", ordinal);
  const tarni_cuda_failure failure = {.operation = operation, .device = name, .code = code};
  return tarni_cuda_fail(&failure);
}

/* ---- Counting and describing ---------------------------------------------------------------- */

static tarn_status count_devices(int *count) {
  *count = 0;
  const tarn_status loaded = tarni_cu_driver_status();
  if (loaded == TARN_NO_DRIVER || loaded == TARN_NO_DEVICE) {
    return TARN_OK;
  }
  const tarni_cu_driver *driver;
  TARN_TRY(tarni_cu_driver_get("cuDeviceGetCount", &driver));
  int found = 0;
  const tarni_cu_result code = driver->device_count(&found);
  if (code == TARNI_CU_NO_DEVICE) {
    return TARN_OK;
  }
  if (code != TARNI_CU_SUCCESS) {
    const tarni_cuda_failure failure = {.operation = "cuDeviceGetCount", .code = code};
    return tarni_cuda_fail(&failure);
  }
  *count = found;
  return TARN_OK;
}

/* The driver and its handle of the device. */
static tarn_status find_device(int ordinal, const char *operation, const tarni_cu_driver **driver,
                               tarni_cu_device *device) {
  TARN_TRY(tarni_cu_driver_get(operation, driver));
  int count = 0;
  TARN_TRY(count_devices(&count));
  if (ordinal < 0 || ordinal >= count) {
    return tarni_fail(TARN_NO_DEVICE, operation, NULL,
                      "Use a number that tarn_device_list lists, check CUDA_VISIBLE_DEVICES, or "
                      "use \"sim\".",
                      "there is no device cuda:%d, the driver has %d", ordinal, count);
  }
  const tarni_cu_result code = (*driver)->device_get(device, ordinal);
  return code == TARNI_CU_SUCCESS ? TARN_OK : fail_device(ordinal, "cuDeviceGet", code);
}

/* An attribute that the driver does not know is 0: the device cannot do it. */
static int read_attribute(const tarni_cu_driver *driver, tarni_cu_device device,
                          tarni_cu_attribute attribute) {
  int value = 0;
  return driver->device_attribute(&value, attribute, device) == TARNI_CU_SUCCESS ? value : 0;
}

static void describe_abilities(const tarni_cu_driver *driver, tarni_cu_device device,
                               tarn_device_info *info) {
  info->has_vmm = driver->has[TARNI_CU_GROUP_VMM] &&
                  read_attribute(driver, device, TARNI_CU_ATTRIBUTE_VMM) != 0;
  info->has_pool = driver->has[TARNI_CU_GROUP_POOL] &&
                   read_attribute(driver, device, TARNI_CU_ATTRIBUTE_POOLS) != 0;
  info->has_export =
      info->has_vmm && read_attribute(driver, device, TARNI_CU_ATTRIBUTE_EXPORT_DESCRIPTOR) != 0;
  info->has_host_register = read_attribute(driver, device, TARNI_CU_ATTRIBUTE_HOST_REGISTER) != 0;
  info->has_batch_copy = driver->copy_batch != NULL;
  info->is_integrated = read_attribute(driver, device, TARNI_CU_ATTRIBUTE_INTEGRATED) != 0;
  /* The driver does not tell: 49 bits since compute capability 6, 40 before. */
  const int major = read_attribute(driver, device, TARNI_CU_ATTRIBUTE_COMPUTE_MAJOR);
  info->address_bits = major >= 6 ? 49 : 40;
}

static tarn_status read_granularity(const tarni_cu_driver *driver, tarni_cu_device device,
                                    int ordinal, tarn_device_info *info) {
  const tarni_cu_chunk_properties properties =
      tarni_cuda_chunk_properties(device, info->has_export);
  size_t bytes = 0;
  const tarni_cu_result code =
      driver->granularity(&bytes, &properties, TARNI_CU_GRANULARITY_MINIMUM);
  if (code != TARNI_CU_SUCCESS) {
    return fail_device(ordinal, "cuMemGetAllocationGranularity", code);
  }
  if (bytes == 0 || !tarni_is_pow2(bytes)) {
    const tarni_facts facts = {.device = info->name};
    return tarni_fail(TARN_DRIVER, "cuMemGetAllocationGranularity", &facts,
                      "The driver is not to be trusted in this state; restart the program.",
                      "the driver of %s told a granularity of %zu bytes, which is no power of two",
                      info->name, bytes);
  }
  info->granularity_bytes = bytes;
  return TARN_OK;
}

/* Needs no context, and makes none. */
static tarn_status fill_info(const tarni_cu_driver *driver, tarni_cu_device device, int ordinal,
                             tarn_device_info *info) {
  (void)snprintf(info->name, sizeof(info->name), "cuda:%d", ordinal);
  info->driver_version = driver->version;
  tarni_cu_result code = driver->device_name(info->model, (int)sizeof(info->model), device);
  if (code != TARNI_CU_SUCCESS) {
    return fail_device(ordinal, "cuDeviceGetName", code);
  }
  info->model[sizeof(info->model) - 1] = '\0';
  size_t bytes = 0;
  code = driver->device_memory(&bytes, device);
  if (code != TARNI_CU_SUCCESS) {
    return fail_device(ordinal, "cuDeviceTotalMem", code);
  }
  info->total_bytes = bytes;
  describe_abilities(driver, device, info);
  return info->has_vmm ? read_granularity(driver, device, ordinal, info) : TARN_OK;
}

static tarn_status describe_device(int ordinal, tarn_device_info *info) {
  *info = (tarn_device_info){.size = sizeof(*info)};
  const tarni_cu_driver *driver;
  tarni_cu_device device = 0;
  TARN_TRY(find_device(ordinal, "cuDeviceGet", &driver, &device));
  const tarn_status status = fill_info(driver, device, ordinal, info);
  if (status != TARN_OK) {
    *info = (tarn_device_info){.size = sizeof(*info)};
  }
  return status;
}

/* ---- Opening -------------------------------------------------------------------------------- */

/* The caller's context where it is one of this device, else NULL. */
static tarni_cu_context find_callers_context(const tarni_cuda_port *port) {
  tarni_cu_context current = NULL;
  tarni_cu_device device = -1;
  if (port->driver->context_current(&current) != TARNI_CU_SUCCESS || current == NULL ||
      port->driver->context_device(&device) != TARNI_CU_SUCCESS || device != port->device) {
    return NULL;
  }
  return current;
}

/* Making a primary context costs hundreds of megabytes of device memory: it must not be retained
 * only to find out whether the caller's context is that one. */
static bool has_primary_context(const tarni_cuda_port *port) {
  unsigned flags = 0;
  int is_active = 0;
  return port->driver->primary_state != NULL &&
         port->driver->primary_state(port->device, &flags, &is_active) == TARNI_CU_SUCCESS &&
         is_active != 0;
}

/* The caller's context, or the primary one. Where these are the same it is held as well, so that it
 * stays as long as the port even if the caller lets go of it. */
static tarni_cu_result choose_context(tarni_cuda_port *port) {
  tarni_cu_context callers = find_callers_context(port);
  if (callers != NULL && !has_primary_context(port)) {
    port->context = callers;
    return TARNI_CU_SUCCESS;
  }
  tarni_cu_context primary = NULL;
  const tarni_cu_result code = port->driver->primary_retain(&primary, port->device);
  if (code != TARNI_CU_SUCCESS) {
    return code;
  }
  port->is_retained = callers == NULL || callers == primary;
  port->context = port->is_retained ? primary : callers;
  if (!port->is_retained) {
    (void)port->driver->primary_release(port->device);
  }
  return TARNI_CU_SUCCESS;
}

/* Some containers may create chunks but not exportable ones: one granule tells. A device that is
 * full at the moment cannot be asked, and is believed. */
static bool may_export(const tarni_cuda_port *port) {
  const tarn_device_info *info = &port->base.device;
  if (!info->has_export) {
    return false;
  }
  const tarni_cu_chunk_properties properties = tarni_cuda_chunk_properties(port->device, true);
  tarni_cu_chunk probe = 0;
  const tarni_cu_result code =
      port->driver->create(&probe, info->granularity_bytes, &properties, 0);
  if (code == TARNI_CU_SUCCESS) {
    (void)port->driver->release(probe);
  }
  return code == TARNI_CU_SUCCESS || code == TARNI_CU_OUT_OF_MEMORY;
}

/* What only an open device can tell. pre: the port's context is current. */
static tarni_cu_result look_around(tarni_cuda_port *port) {
  const tarni_cu_driver *driver = port->driver;
  tarn_device_info *info = &port->base.device;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  const tarni_cu_result code = driver->memory_info(&free_bytes, &total_bytes);
  if (code != TARNI_CU_SUCCESS) {
    return code;
  }
  info->free_bytes = free_bytes;
  info->has_export = may_export(port);
  for (int i = 0; i < TARNI_CU_GROUP_COUNT; i++) {
    port->has[i] = driver->has[i];
  }
  port->has[TARNI_CU_GROUP_VMM] = info->has_vmm;
  port->has[TARNI_CU_GROUP_POOL] = info->has_pool;
  port->has[TARNI_CU_GROUP_VALUE] =
      driver->has[TARNI_CU_GROUP_VALUE] &&
      read_attribute(driver, port->device, TARNI_CU_ATTRIBUTE_VALUES_64) != 0;
  port->is_unified =
      read_attribute(driver, port->device, TARNI_CU_ATTRIBUTE_UNIFIED_ADDRESSING) != 0;
  port->is_unified_registered =
      read_attribute(driver, port->device, TARNI_CU_ATTRIBUTE_REGISTERED_AT_HOST_POINTER) != 0;
  return TARNI_CU_SUCCESS;
}

static void let_go(tarni_cuda_port *port) {
  if (port->is_retained && !tarni_cu_forked()) {
    (void)port->driver->primary_release(port->device);
  }
  free(port);
}

static tarn_status enter_and_look(tarni_cuda_port *port, int ordinal) {
  tarni_cu_result code = choose_context(port);
  if (code != TARNI_CU_SUCCESS) {
    return fail_device(ordinal, "cuDevicePrimaryCtxRetain", code);
  }
  code = port->driver->context_push(port->context);
  if (code != TARNI_CU_SUCCESS) {
    return fail_device(ordinal, "cuCtxPushCurrent", code);
  }
  code = look_around(port);
  tarni_cu_context popped = NULL;
  (void)port->driver->context_pop(&popped);
  tarn_assert(popped == NULL || popped == port->context);
  return code == TARNI_CU_SUCCESS ? TARN_OK : fail_device(ordinal, "cuMemGetInfo", code);
}

static tarn_status open_device(int ordinal, const char *options, tarni_port **port) {
  *port = NULL;
  if (options != NULL && options[0] != '\0') {
    return tarni_fail(TARN_INVALID, "tarn_device_open", NULL, "Leave them out.",
                      "a GPU takes no options, and \"%.80s\" was given", options);
  }
  const tarni_cu_driver *driver;
  tarni_cu_device device = 0;
  TARN_TRY(find_device(ordinal, "cuDeviceGet", &driver, &device));
  tarni_cuda_port *opened = calloc(1, sizeof(*opened));
  if (opened == NULL) {
    const tarni_facts facts = {.requested_bytes = sizeof(*opened)};
    return tarni_fail(TARN_HOST_MEMORY, "tarn_device_open", &facts, "Free host memory.",
                      "no host memory for the device's record, %zu bytes", sizeof(*opened));
  }
  opened->base.table = &tarni_port_cuda;
  opened->base.device.size = sizeof(opened->base.device);
  opened->driver = driver;
  opened->device = device;
  tarn_status status = fill_info(driver, device, ordinal, &opened->base.device);
  if (status == TARN_OK) {
    status = enter_and_look(opened, ordinal);
  }
  if (status != TARN_OK) {
    let_go(opened);
    return status;
  }
  *port = &opened->base;
  return TARN_OK;
}

static void close_device(tarni_port *port) {
  if (port != NULL) {
    let_go(tarni_cuda_of(port));
  }
}

tarn_status tarni_cuda_info(tarni_port *port, uint64_t *free_bytes, uint64_t *total_bytes) {
  *free_bytes = 0;
  *total_bytes = 0;
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_INFO, 0, &call));
  size_t free_now = 0;
  size_t total = 0;
  TARN_TRY(tarni_cuda_call_end(&call, call.driver->memory_info(&free_now, &total)));
  *free_bytes = free_now;
  *total_bytes = total;
  return TARN_OK;
}

const tarni_port_table tarni_port_cuda = {
    .name = "cuda",
    .count = count_devices,
    .describe = describe_device,
    .open = open_device,
    .close = close_device,
    .info = tarni_cuda_info,
    .reserve = tarni_cuda_reserve,
    .unreserve = tarni_cuda_unreserve,
    .create = tarni_cuda_create,
    .release = tarni_cuda_release,
    .map = tarni_cuda_map,
    .access = tarni_cuda_access,
    .unmap = tarni_cuda_unmap,
    .export_chunk = tarni_cuda_export,
    .import_chunk = tarni_cuda_import,
    .plain_alloc = tarni_cuda_plain_alloc,
    .plain_free = tarni_cuda_plain_free,
    .pool_create = tarni_cuda_pool_create,
    .pool_destroy = tarni_cuda_pool_destroy,
    .pool_trim = tarni_cuda_pool_trim,
    .pool_alloc = tarni_cuda_pool_alloc,
    .pool_free = tarni_cuda_pool_free,
    .host_alloc = tarni_cuda_host_alloc,
    .host_free = tarni_cuda_host_free,
    .host_register = tarni_cuda_host_register,
    .host_unregister = tarni_cuda_host_unregister,
    .stream_create = tarni_cuda_stream_create,
    .stream_destroy = tarni_cuda_stream_destroy,
    .stream_id = tarni_cuda_stream_id,
    .stream_query = tarni_cuda_stream_query,
    .stream_sync = tarni_cuda_stream_sync,
    .event_create = tarni_cuda_event_create,
    .event_destroy = tarni_cuda_event_destroy,
    .event_record = tarni_cuda_event_record,
    .event_query = tarni_cuda_event_query,
    .event_sync = tarni_cuda_event_sync,
    .event_wait = tarni_cuda_event_wait,
    .capture_state = tarni_cuda_capture_state,
    .capture_nodes = tarni_cuda_capture_nodes,
    .node_before = tarni_cuda_node_before,
    .capture_begin = tarni_cuda_capture_begin,
    .capture_end = tarni_cuda_capture_end,
    .thread_mode = tarni_cuda_thread_mode,
    .graph_instantiate = tarni_cuda_graph_instantiate,
    .graph_launch = tarni_cuda_graph_launch,
    .graph_destroy = tarni_cuda_graph_destroy,
    .copy = tarni_cuda_copy,
    .copy_sync = tarni_cuda_copy_sync,
    .copy_prepare = tarni_cuda_copy_prepare,
    .copy_batch = tarni_cuda_copy_batch,
    .fill = tarni_cuda_fill,
    .fill_sync = tarni_cuda_fill_sync,
    .value_write = tarni_cuda_value_write,
    .value_wait = tarni_cuda_value_wait,
    .now_ns = tarni_cuda_now_ns,
};
