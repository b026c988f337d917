/* SPDX-License-Identifier: MIT
 *
 * A simulated GPU as a whole: its options, its opening and closing, and the table that makes it a
 * port. Options follow the name: "sim:80G,seed=7"; docs/sim.md explains them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/text.h"
#include "port/sim/sim.h"

/* ---- Options ---- */

static tarn_status option_fail(const char *option) {
  return tarni_fail(TARN_INVALID, "tarn_device_open", NULL,
                    "Options of the simulated GPU are SIZE, seed=N, id=N, "
                    "order=random|lazy|eager, granularity=SIZE (a power of two from 4K to 1G), "
                    "vmm=on|off, pool=on|off, register=on|off, fail=CALL:N.",
                    "the simulated GPU does not know the option '%s'", option);
}

static bool parse_switch(const char *value, bool *out) {
  *out = strcmp(value, "on") == 0;
  return *out || strcmp(value, "off") == 0;
}

static bool parse_order(const char *value, sim_order *order) {
  static const char *const names[] = {
      [SIM_ORDER_RANDOM] = "random", [SIM_ORDER_LAZY] = "lazy", [SIM_ORDER_EAGER] = "eager"};
  for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    if (strcmp(value, names[i]) == 0) {
      *order = (sim_order)i;
      return true;
    }
  }
  return false;
}

static bool parse_fault(const char *value, sim_fault *fault) {
  const char *colon = strchr(value, ':');
  if (colon == NULL || !tarni_text_to_number(colon + 1, &fault->nth)) {
    return false;
  }
  const size_t length = (size_t)(colon - value);
  fault->times = 1;
  fault->code = SIM_CUDA_OUT_OF_MEMORY;
  for (unsigned i = 0; i < TARN_CALL_COUNT; i++) {
    const char *name = tarn_call_name((tarn_call)i);
    if (strlen(name) == length && strncmp(name, value, length) == 0) {
      fault->call = (tarn_call)i;
      return true;
    }
  }
  fault->call = TARN_CALL_COUNT;
  return length == 3 && strncmp(value, "any", 3) == 0;
}

static bool parse_granularity(const char *value, uint64_t *bytes) {
  return tarni_text_to_bytes(value, bytes) && tarni_is_pow2(*bytes) && *bytes >= 4096 &&
         *bytes <= (1u << 30);
}

static bool parse_named(const char *name, const char *value, sim_config *config) {
  if (strcmp(name, "seed") == 0) {
    return tarni_text_to_number(value, &config->seed);
  }
  if (strcmp(name, "id") == 0) {
    return tarni_text_to_number(value, &config->id);
  }
  if (strcmp(name, "order") == 0) {
    return parse_order(value, &config->order);
  }
  if (strcmp(name, "granularity") == 0) {
    return parse_granularity(value, &config->granularity_bytes);
  }
  if (strcmp(name, "vmm") == 0) {
    return parse_switch(value, &config->has_vmm);
  }
  if (strcmp(name, "pool") == 0) {
    return parse_switch(value, &config->has_pool);
  }
  if (strcmp(name, "register") == 0) {
    return parse_switch(value, &config->has_register);
  }
  return strcmp(name, "fail") == 0 && parse_fault(value, &config->fault);
}

static bool parse_one(char *option, sim_config *config) {
  char *equals = strchr(option, '=');
  if (equals == NULL) {
    return tarni_text_to_bytes(option, &config->capacity_bytes) && config->capacity_bytes != 0;
  }
  *equals = '\0';
  const bool is_good = parse_named(option, equals + 1, config);
  *equals = '=';
  return is_good;
}

tarn_status tarni_sim_config_parse(const char *options, sim_config *config) {
  *config = (sim_config){.capacity_bytes = (uint64_t)80 << 30,
                         .granularity_bytes = 2 << 20,
                         .seed = 1,
                         .has_vmm = true,
                         .has_pool = true,
                         .has_register = true};
  char text[256];
  if (strlen(options) >= sizeof(text)) {
    return option_fail(options);
  }
  (void)snprintf(text, sizeof(text), "%s", options);
  for (char *option = text; option != NULL && text[0] != '\0';) {
    char *comma = strchr(option, ',');
    if (comma != NULL) {
      *comma = '\0';
    }
    if (!parse_one(option, config)) {
      return option_fail(option);
    }
    option = comma != NULL ? comma + 1 : NULL;
  }
  config->fault.is_endless = false;
  return TARN_OK;
}

/* ---- The device ---- */

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
                             .has_host_register = config->has_register};
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

static tarn_status sim_open(int ordinal, const char *options, tarni_port **out) {
  (void)ordinal;
  *out = NULL;
  sim_config config;
  TARN_TRY(tarni_sim_config_parse(options, &config));
  sim_device *device = calloc(1, sizeof(*device));
  if (device == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_device_open", NULL, "Free some memory.",
                      "no memory for a simulated GPU (%zu bytes)", sizeof(*device));
  }
  device->config = config;
  device->rng.state = config.seed;
  device->fault = config.fault;
  device->port.table = &tarni_port_sim;
  info_fill(&config, &device->port.device);
  (void)snprintf(device->port.device.name, sizeof(device->port.device.name), "sim%s%s",
                 options[0] != '\0' ? ":" : "", options);
  device->file = tarni_sim_bytes_file();
  tarni_sim_lock();
  const bool is_open = device->file >= 0 && tarni_sim_streams_open(device);
  tarni_sim_unlock();
  if (!is_open) {
    if (device->file >= 0) {
      (void)close(device->file);
    }
    const tarn_status status = tarni_sim_no_host_memory(device, "tarn_device_open");
    free(device);
    return status;
  }
  *out = &device->port;
  return TARN_OK;
}

static void find_leaks(sim_device *device) {
  const struct {
    uint64_t n;
    const char *what;
  } kinds[] = {{device->n_events, "events"},
               {device->n_graphs, "graphs"},
               {device->n_execs, "executable graphs"}};
  for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
    if (kinds[i].n != 0) {
      tarn_sim_finding finding = {.kind = TARN_SIM_LEAK};
      tarni_sim_oracle_find(device, &finding, "%llu %s were never destroyed",
                            (unsigned long long)kinds[i].n, kinds[i].what);
    }
  }
}

static void sim_close(tarni_port *port) {
  sim_device *device = (sim_device *)port;
  tarni_sim_lock();
  device->fault.nth = 0;
  tarni_sim_finish_device(device);
  find_leaks(device);
  tarni_sim_capture_close(device);
  tarni_sim_pools_close(device);
  tarni_sim_memory_close(device);
  tarni_sim_streams_close(device);
  while (device->free_events != NULL) {
    sim_event *event = device->free_events;
    device->free_events = event->next;
    free(event);
  }
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
    .capture_begin = tarni_sim_capture_begin,
    .capture_end = tarni_sim_capture_end,
    .graph_instantiate = tarni_sim_graph_instantiate,
    .graph_launch = tarni_sim_graph_launch,
    .graph_destroy = tarni_sim_graph_destroy,
    .copy = tarni_sim_copy,
    .copy_sync = tarni_sim_copy_sync,
    .fill = tarni_sim_fill,
    .fill_sync = tarni_sim_fill_sync,
    .value_write = tarni_sim_value_write,
    .value_wait = tarni_sim_value_wait,
    .now_ns = sim_now_ns,
};
