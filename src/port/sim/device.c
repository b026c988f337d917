/* SPDX-License-Identifier: MIT
 *
 * A simulated GPU as a whole: its opening and closing, and the table that makes it a port. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "port/sim/sim.h"

static tarn_status sim_count(int *count) {
  *count = 1;
  return TARN_OK;
}

static void info_fill(const sim_config *config, tarn_device_info *info) {
  *info = (tarn_device_info){.size = sizeof(*info),
                             .name = "sim",
                             .total_bytes = config->capacity_bytes,
                             .free_bytes = config->capacity_bytes,
                             .granularity_bytes = config->has_vmm ? config->granularity_bytes : 0,
                             .address_bits = 48,
                             .is_simulated = true,
                             .has_vmm = config->has_vmm,
                             .has_pool = config->has_pool,
                             .has_export = config->has_vmm,
                             .has_host_register = config->has_register,
                             .has_batch_copy = true};
  (void)snprintf(info->model, sizeof(info->model), "simulated GPU (seed %llu)",
                 (unsigned long long)config->seed);
}

static tarn_status sim_describe(int ordinal, tarn_device_info *info) {
  (void)ordinal;
  sim_config config;
  TARN_TRY(tarni_sim_config_parse("", &config));
  info_fill(&config, info);
  return TARN_OK;
}

static tarn_status no_memory(const char *options) {
  return tarni_fail(TARN_HOST_MEMORY, "tarn_device_open", NULL, "Free some memory.",
                    "no memory for a simulated GPU (\"%s\", %zu bytes)", options,
                    sizeof(sim_device));
}

/* Makes what an open device has from the start, or nothing. */
static bool device_start(sim_device *device) {
  tarni_sim_watch_forks();
  device->file = tarni_sim_bytes_file();
  if (device->file < 0) {
    return false;
  }
  tarni_sim_lock();
  const bool is_open = tarni_sim_streams_open(device);
  if (is_open) {
    device->next = tarni_sim_world.devices;
    tarni_sim_world.devices = device;
  } else {
    tarni_sim_streams_close(device);
  }
  tarni_sim_unlock();
  if (!is_open) {
    (void)close(device->file);
  }
  return is_open;
}

static tarn_status sim_open(int ordinal, const char *options, tarni_port **out) {
  (void)ordinal;
  *out = NULL;
  sim_config config;
  TARN_TRY(tarni_sim_config_parse(options, &config));
  sim_device *device = tarni_sim_store_zeroed(1, sizeof(*device));
  if (device == NULL) {
    return no_memory(options);
  }
  device->config = config;
  device->rng.state = config.seed;
  device->fault = config.fault;
  device->port.table = &tarni_port_sim;
  info_fill(&config, &device->port.device);
  (void)snprintf(device->port.device.name, sizeof(device->port.device.name), "sim%s%s",
                 options[0] != '\0' ? ":" : "", options);
  if (!device_start(device)) {
    free(device);
    return no_memory(options);
  }
  *out = &device->port;
  return TARN_OK;
}

static void world_forget(const sim_device *device) {
  sim_device **link = &tarni_sim_world.devices;
  while (*link != device) {
    link = &(*link)->next;
  }
  *link = device->next;
}

/* A device that is broken lets nothing be given back, so its leaks are nobody's fault. */
static void sim_close(tarni_port *port) {
  sim_device *device = (sim_device *)port;
  tarni_sim_lock();
  tarni_sim_drain(device);
  tarni_sim_capture_close(device);
  tarni_sim_graphs_close(device);
  tarni_sim_events_close(device);
  tarni_sim_pools_close(device);
  tarni_sim_regions_close(device);
  tarni_sim_chunks_close(device);
  tarni_sim_streams_close(device);
  world_forget(device);
  tarni_sim_unlock();
  (void)close(device->file);
  free(device);
}

static tarn_status sim_info(tarni_port *port, uint64_t *free_bytes, uint64_t *total_bytes) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_INFO, 0));
  *free_bytes = device->config.capacity_bytes - device->created_bytes;
  *total_bytes = device->config.capacity_bytes;
  return tarni_sim_end(device, TARN_OK);
}

static uint64_t sim_now_ns(tarni_port *port) {
  sim_device *device = (sim_device *)port;
  tarni_sim_lock();
  const uint64_t now = device->now_ns;
  tarni_sim_unlock();
  return now;
}

const tarni_port_table tarni_port_sim = {
    .name = "sim",
    .count = sim_count,
    .describe = sim_describe,
    .open = sim_open,
    .close = sim_close,
    .info = sim_info,
    .reserve = tarni_sim_reserve,
    .unreserve = tarni_sim_unreserve,
    .create = tarni_sim_create,
    .release = tarni_sim_release,
    .map = tarni_sim_map,
    .access = tarni_sim_access,
    .unmap = tarni_sim_unmap,
    .export_chunk = tarni_sim_export,
    .import_chunk = tarni_sim_import,
    .plain_alloc = tarni_sim_plain_alloc,
    .plain_free = tarni_sim_plain_free,
    .pool_create = tarni_sim_pool_create,
    .pool_destroy = tarni_sim_pool_destroy,
    .pool_trim = tarni_sim_pool_trim,
    .pool_alloc = tarni_sim_pool_alloc,
    .pool_free = tarni_sim_pool_free,
    .host_alloc = tarni_sim_host_alloc,
    .host_free = tarni_sim_host_free,
    .host_register = tarni_sim_host_register,
    .host_unregister = tarni_sim_host_unregister,
    .stream_create = tarni_sim_stream_create,
    .stream_destroy = tarni_sim_stream_destroy,
    .stream_id = tarni_sim_stream_id,
    .stream_query = tarni_sim_stream_query,
    .stream_sync = tarni_sim_stream_sync,
    .event_create = tarni_sim_event_create,
    .event_destroy = tarni_sim_event_destroy,
    .event_record = tarni_sim_event_record,
    .event_query = tarni_sim_event_query,
    .event_sync = tarni_sim_event_sync,
    .event_wait = tarni_sim_event_wait,
    .capture_state = tarni_sim_capture_state,
    .capture_nodes = tarni_sim_capture_nodes,
    .node_before = tarni_sim_node_before,
    .capture_begin = tarni_sim_capture_begin,
    .capture_end = tarni_sim_capture_end,
    .thread_mode = tarni_sim_thread_mode,
    .graph_instantiate = tarni_sim_graph_instantiate,
    .graph_launch = tarni_sim_graph_launch,
    .graph_destroy = tarni_sim_graph_destroy,
    .copy = tarni_sim_copy,
    .copy_sync = tarni_sim_copy_sync,
    .copy_prepare = tarni_sim_copy_prepare,
    .copy_batch = tarni_sim_copy_batch,
    .fill = tarni_sim_fill,
    .fill_sync = tarni_sim_fill_sync,
    .value_write = tarni_sim_value_write,
    .value_wait = tarni_sim_value_wait,
    .now_ns = sim_now_ns,
};
