/* SPDX-License-Identifier: MIT
 *
 * The host port: memory of the host, pinned for a device, in the shape of a port, so that a heap
 * can be made of it. A chunk becomes memory when it is mapped: pages are put there by several
 * threads and registered with the device, as one piece. Streams, events and captures are the
 * device's own (forward.c).
 *
 * Apart from the contract of port.h: a chunk has one mapping at a time and is released unmapped.
 * Shortage of the host's memory is TARN_DEVICE_MEMORY, since this memory is the port's own.
 *
 * Lock: port->lock guards the list of chunks; it is not held during calls of the device's port. */
#include "port/host/host.h"

#include <stdlib.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "base/fork.h"

static host_port *host_of(tarni_port *port) {
  return (host_port *)port;
}

static void *pages_at(tarn_ptr address) {
  return (void *)(uintptr_t)address;
}

static tarn_status host_short(const tarni_port *port, const char *operation, uint64_t size) {
  const tarni_facts facts = {.device = port->device.name, .requested_bytes = size};
  return tarni_fail(TARN_DEVICE_MEMORY, operation, &facts,
                    "Free host memory, or raise the limits of the process or the container.",
                    "the system has not %llu bytes of host memory to be pinned",
                    (unsigned long long)size);
}

/* ---- Devices and addresses ---- */

static tarn_status host_info(tarni_port *port, uint64_t *free_bytes, uint64_t *total_bytes) {
  TARN_TRY(tarni_port_info(tarni_host_device(port), free_bytes, total_bytes)); /* is it lost? */
  *total_bytes = port->device.total_bytes;
  *free_bytes = tarni_min(tarni_host_room_free(), *total_bytes);
  return TARN_OK;
}

static tarn_status host_reserve(tarni_port *port, uint64_t size, uint64_t alignment,
                                tarn_ptr *address) {
  void *reserved = tarni_host_pages_reserve(size, alignment);
  if (reserved == NULL) {
    const tarni_facts facts = {.device = port->device.name, .requested_bytes = size};
    return tarni_fail(TARN_ADDRESS_SPACE, "mmap", &facts,
                      "Raise the limit of address space (ulimit -v).",
                      "no %llu bytes of addresses are left", (unsigned long long)size);
  }
  *address = (uintptr_t)reserved;
  return TARN_OK;
}

static tarn_status host_unreserve(tarni_port *port, tarn_ptr address, uint64_t size) {
  if (tarni_host_pages_unreserve(pages_at(address), size)) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = port->device.name, .requested_bytes = size};
  return tarni_fail(TARN_DRIVER, "munmap", &facts, "Try again.",
                    "the system did not take %llu bytes of addresses back",
                    (unsigned long long)size);
}

/* ---- Chunks ---- */

static tarn_status host_create(tarni_port *port, uint64_t size, tarni_chunk *chunk) {
  host_chunk *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return host_short(port, "malloc", sizeof(*made));
  }
  host_port *host = host_of(port);
  made->size = size;
  tarni_lock_acquire(&host->lock);
  made->next = host->chunks;
  host->chunks = made;
  tarni_lock_release(&host->lock);
  *chunk = (uintptr_t)made;
  return TARN_OK;
}

static tarn_status host_wrong_state(const tarni_port *port, const char *operation,
                                    const char *what) {
  const tarni_facts facts = {.device = port->device.name};
  return tarni_fail(TARN_STATE, operation, &facts, "Map a chunk once, and unmap it before its end.",
                    "%s", what);
}

static tarn_status host_release(tarni_port *port, tarni_chunk chunk) {
  host_port *host = host_of(port);
  host_chunk *known = pages_at(chunk);
  if (known->address != 0) {
    return host_wrong_state(port, "release", "the chunk is still mapped");
  }
  tarni_lock_acquire(&host->lock);
  host_chunk **link = &host->chunks;
  while (*link != known) {
    tarn_assert(*link != NULL && "a chunk is in the list of its port");
    link = &(*link)->next;
  }
  *link = known->next;
  tarni_lock_release(&host->lock);
  free(known);
  return TARN_OK;
}

/* The driver has not enough to pin it with: that, too, is a shortage of this port's memory. */
static tarn_status register_failed(tarn_status status) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  if (status == TARN_HOST_MEMORY) {
    error.status = TARN_DEVICE_MEMORY;
  }
  return tarni_fail_again(&error);
}

static tarn_status host_map(tarni_port *port, tarn_ptr address, uint64_t size, tarni_chunk chunk) {
  host_port *host = host_of(port);
  host_chunk *known = pages_at(chunk);
  if (known->address != 0 || known->size != size) {
    return host_wrong_state(port, "map", "the chunk is mapped already, or of another size");
  }
  const host_pages_result result = tarni_host_pages_fill(pages_at(address), size, &host->config);
  if (result == HOST_PAGES_REFUSED) {
    const tarni_facts facts = {.device = port->device.name, .requested_bytes = size};
    return tarni_fail(TARN_UNSUPPORTED, "mbind", &facts,
                      "Let the process set its memory policy, or name no node.",
                      "the system does not let this process place memory on node %u",
                      host->config.node);
  }
  if (result == HOST_PAGES_SHORT) {
    return host_short(port, "mmap", size);
  }
  TARNI_RELAXED(host->device);
  const tarn_status status = tarni_port_host_register(host->device, pages_at(address), size);
  if (status != TARN_OK) {
    (void)tarni_host_pages_drop(pages_at(address), size);
    return register_failed(status);
  }
  tarni_lock_acquire(&host->lock);
  known->address = address;
  known->is_registered = true;
  tarni_lock_release(&host->lock);
  return TARN_OK;
}

static tarn_status host_access(tarni_port *port, tarn_ptr address, uint64_t size) {
  (void)port;
  (void)address;
  (void)size;
  return TARN_OK; /* a mapping can be used as it is */
}

static host_chunk *chunk_at(host_port *host, tarn_ptr address) {
  tarni_lock_acquire(&host->lock);
  host_chunk *chunk = host->chunks;
  while (chunk != NULL && chunk->address != address) {
    chunk = chunk->next;
  }
  tarni_lock_release(&host->lock);
  return chunk;
}

/* May be called again where it fails. */
static tarn_status host_unmap(tarni_port *port, tarn_ptr address, uint64_t size) {
  host_port *host = host_of(port);
  host_chunk *chunk = chunk_at(host, address);
  if (chunk == NULL || chunk->size != size) {
    return host_wrong_state(port, "unmap", "no chunk is mapped there");
  }
  if (chunk->is_registered) {
    TARNI_RELAXED(host->device);
    TARN_TRY(tarni_port_host_unregister(host->device, pages_at(address)));
    chunk->is_registered = false;
  }
  if (!tarni_host_pages_drop(pages_at(address), size)) {
    return host_short(port, "mmap", size);
  }
  tarni_lock_acquire(&host->lock);
  chunk->address = 0;
  tarni_lock_release(&host->lock);
  return TARN_OK;
}

/* ---- Plain memory: the driver's own pinned memory ---- */

static tarn_status host_plain_alloc(tarni_port *port, uint64_t size, tarn_ptr *address) {
  host_port *host = host_of(port);
  const unsigned flags = host->config.is_write_combined ? TARNI_HOST_WRITE_COMBINED : 0;
  void *pointer;
  TARNI_RELAXED(host->device);
  const tarn_status status = tarni_port_host_alloc(host->device, size, flags, &pointer);
  *address = (uintptr_t)pointer;
  return status == TARN_OK ? TARN_OK : register_failed(status);
}

static tarn_status host_plain_free(tarni_port *port, tarn_ptr address) {
  TARNI_RELAXED(tarni_host_device(port));
  return tarni_port_host_free(tarni_host_device(port), pages_at(address));
}

/* ---- Opening ---- */

static void host_close(tarni_port *port) {
  host_port *host = host_of(port);
  while (host->chunks != NULL) { /* of a lost device, which lets nothing be undone */
    host_chunk *chunk = host->chunks;
    host->chunks = chunk->next;
    free(chunk);
  }
  tarni_lock_destroy(&host->lock);
  tarni_port_close(host->device);
  free(host);
}

const tarni_port_table tarni_port_host = {
    .name = "host",
    .close = host_close,
    .info = host_info,
    .reserve = host_reserve,
    .unreserve = host_unreserve,
    .create = host_create,
    .release = host_release,
    .map = host_map,
    .access = host_access,
    .unmap = host_unmap,
    .plain_alloc = host_plain_alloc,
    .plain_free = host_plain_free,
    .host_alloc = tarni_host_host_alloc,
    .host_free = tarni_host_host_free,
    .host_register = tarni_host_host_register,
    .host_unregister = tarni_host_host_unregister,
    .stream_create = tarni_host_stream_create,
    .stream_destroy = tarni_host_stream_destroy,
    .stream_id = tarni_host_stream_id,
    .stream_query = tarni_host_stream_query,
    .stream_sync = tarni_host_stream_sync,
    .event_create = tarni_host_event_create,
    .event_destroy = tarni_host_event_destroy,
    .event_record = tarni_host_event_record,
    .event_query = tarni_host_event_query,
    .event_sync = tarni_host_event_sync,
    .event_wait = tarni_host_event_wait,
    .capture_state = tarni_host_capture_state,
    .capture_begin = tarni_host_capture_begin,
    .capture_end = tarni_host_capture_end,
    .graph_instantiate = tarni_host_graph_instantiate,
    .graph_launch = tarni_host_graph_launch,
    .graph_destroy = tarni_host_graph_destroy,
    .copy = tarni_host_copy,
    .copy_sync = tarni_host_copy_sync,
    .fill = tarni_host_fill,
    .fill_sync = tarni_host_fill_sync,
    .value_write = tarni_host_value_write,
    .value_wait = tarni_host_value_wait,
    .capture_nodes = tarni_host_capture_nodes,
    .node_before = tarni_host_node_before,
    .copy_prepare = tarni_host_copy_prepare,
    .copy_batch = tarni_host_copy_batch,
    .thread_mode = tarni_host_thread_mode,
    .now_ns = tarni_host_now_ns,
};

static tarn_status node_check(const tarni_host_config *config) {
  if (!config->has_node) {
    return TARN_OK;
  }
  if (!tarni_host_pages_has_node(config->node)) {
    return tarni_fail(TARN_INVALID, "tarn_pinned_create", NULL,
                      "Name one that /sys/devices/system/node lists, or none.",
                      "this machine has no memory node %u", config->node);
  }
  if (!tarni_host_pages_can_bind(config->node)) {
    return tarni_fail(TARN_UNSUPPORTED, "tarn_pinned_create", NULL,
                      "Let the process set its memory policy (mbind), or name no node.",
                      "the system does not let this process place memory on node %u", config->node);
  }
  return TARN_OK;
}

tarn_status tarni_port_host_open(const char *device, const tarni_host_config *config,
                                 tarni_port **port) {
  *port = NULL;
  tarn_assert(tarni_is_pow2(config->region_bytes));
  TARN_TRY(node_check(config));
  host_port *host = calloc(1, sizeof(*host));
  if (host == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_pinned_create", NULL, "Free some host memory.",
                      "no host memory for a pool (%zu bytes)", sizeof(*host));
  }
  const tarn_status status = tarni_port_open(device, &host->device);
  if (status != TARN_OK) {
    free(host);
    return status;
  }
  tarni_lock_init(&host->lock, TARNI_RANK_SIM);
  host->config = *config;
  host->base.table = &tarni_port_host;
  host->base.fork = tarni_fork_watch();
  host->base.device = host->device->device;
  host->base.device.total_bytes = tarni_host_room_total();
  host->base.device.granularity_bytes = config->region_bytes;
  host->base.device.has_vmm = host->device->device.has_host_register;
  host->base.device.has_pool = false;
  host->base.device.has_export = false;
  *port = &host->base;
  return TARN_OK;
}

tarni_port *tarni_port_host_device(tarni_port *port) {
  tarn_assert(port->table == &tarni_port_host);
  return tarni_host_device(port);
}

bool tarni_port_host_can_register(tarni_port *port) {
  tarni_port *device = tarni_host_device(port);
  uint64_t size;
  if (!device->device.has_host_register) {
    return false;
  }
  void *page = tarni_host_pages_one(&size);
  if (page == NULL) {
    return true; /* a shortage is for those to tell who need memory */
  }
  TARNI_RELAXED(device);
  const tarn_status status = tarni_port_host_register(device, page, size);
  if (status == TARN_OK && tarni_port_host_unregister(device, page) != TARN_OK &&
      tarni_port_host_unregister(device, page) != TARN_OK) {
    return true; /* the driver keeps the page, so it stays */
  }
  (void)tarni_host_pages_unreserve(page, size);
  return status != TARN_UNSUPPORTED && status != TARN_DRIVER && status != TARN_INVALID;
}
