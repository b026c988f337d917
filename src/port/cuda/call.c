/* SPDX-License-Identifier: MIT
 *
 * One call of the driver: the way in and the way out that every entry of the cuda port shares.
 * Owns no state but the port's lost_code. Invariant: a begun call is ended, and then the thread's
 * current context is what it was before. No locks. */
#include <time.h>

#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

/* The group whose entries a kind of call needs; CORE, which is 0, where nothing is said.
 * capture_state and stream_id have a fallback of their own. */
static const unsigned char call_groups[TARN_CALL_COUNT] = {
    [TARN_CALL_RESERVE] = TARNI_CU_GROUP_VMM,
    [TARN_CALL_UNRESERVE] = TARNI_CU_GROUP_VMM,
    [TARN_CALL_CREATE] = TARNI_CU_GROUP_VMM,
    [TARN_CALL_RELEASE] = TARNI_CU_GROUP_VMM,
    [TARN_CALL_MAP] = TARNI_CU_GROUP_VMM,
    [TARN_CALL_ACCESS] = TARNI_CU_GROUP_VMM,
    [TARN_CALL_UNMAP] = TARNI_CU_GROUP_VMM,
    [TARN_CALL_EXPORT] = TARNI_CU_GROUP_VMM,
    [TARN_CALL_IMPORT] = TARNI_CU_GROUP_VMM,
    [TARN_CALL_POOL_CREATE] = TARNI_CU_GROUP_POOL,
    [TARN_CALL_POOL_DESTROY] = TARNI_CU_GROUP_POOL,
    [TARN_CALL_POOL_TRIM] = TARNI_CU_GROUP_POOL,
    [TARN_CALL_POOL_ALLOC] = TARNI_CU_GROUP_POOL,
    [TARN_CALL_POOL_FREE] = TARNI_CU_GROUP_POOL,
    [TARN_CALL_CAPTURE_STATE] = TARNI_CU_GROUP_CAPTURE,
    [TARN_CALL_CAPTURE_BEGIN] = TARNI_CU_GROUP_CAPTURE,
    [TARN_CALL_CAPTURE_END] = TARNI_CU_GROUP_CAPTURE,
    [TARN_CALL_CAPTURE_NODES] = TARNI_CU_GROUP_NODES,
    [TARN_CALL_NODE_BEFORE] = TARNI_CU_GROUP_NODES,
    [TARN_CALL_GRAPH_INSTANTIATE] = TARNI_CU_GROUP_GRAPH,
    [TARN_CALL_GRAPH_LAUNCH] = TARNI_CU_GROUP_GRAPH,
    [TARN_CALL_GRAPH_DESTROY] = TARNI_CU_GROUP_GRAPH,
    [TARN_CALL_VALUE_WRITE] = TARNI_CU_GROUP_VALUE,
    [TARN_CALL_VALUE_WAIT] = TARNI_CU_GROUP_VALUE,
};

/* Calls that give something back reach the driver even when the context is lost: what it can still
 * take, it should. pool_free is none of them: it is work for a stream. */
static const bool gives_back[TARN_CALL_COUNT] = {
    [TARN_CALL_UNRESERVE] = true,       [TARN_CALL_RELEASE] = true,
    [TARN_CALL_UNMAP] = true,           [TARN_CALL_PLAIN_FREE] = true,
    [TARN_CALL_POOL_DESTROY] = true,    [TARN_CALL_HOST_FREE] = true,
    [TARN_CALL_HOST_UNREGISTER] = true, [TARN_CALL_STREAM_DESTROY] = true,
    [TARN_CALL_EVENT_DESTROY] = true,   [TARN_CALL_GRAPH_DESTROY] = true,
};

const char *tarni_cuda_call_entry(tarn_call kind) {
  static const char *const entries[TARN_CALL_COUNT] = {
#define CALL_ENTRY(name, text, entry) [TARN_CALL_##name] = entry,
      TARN_CALL_MAP(CALL_ENTRY)
#undef CALL_ENTRY
  };
  tarn_assert((unsigned)kind < TARN_CALL_COUNT);
  return entries[kind];
}

static uint64_t monotonic_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t tarni_cuda_now_ns(tarni_port *port) {
  (void)port;
  return monotonic_ns();
}

/* What runs out when a call of this kind finds too little. */
static tarn_status shortage_of(tarn_call kind) {
  if (kind == TARN_CALL_RESERVE) {
    return TARN_ADDRESS_SPACE;
  }
  const bool is_host = kind == TARN_CALL_HOST_ALLOC || kind == TARN_CALL_HOST_FREE ||
                       kind == TARN_CALL_HOST_REGISTER || kind == TARN_CALL_HOST_UNREGISTER;
  return is_host ? TARN_HOST_MEMORY : TARN_DEVICE_MEMORY;
}

static tarn_status fail_call(const tarni_cuda_call *call, tarni_cu_result code) {
  const tarni_cuda_failure failure = {.operation = call->operation,
                                      .device = call->port->base.device.name,
                                      .code = code,
                                      .requested_bytes = call->requested_bytes,
                                      .shortage = shortage_of(call->kind)};
  return tarni_cuda_fail(&failure);
}

static tarn_status fail_missing(const tarni_cuda_call *call, tarni_cu_group group) {
  const tarni_facts facts = {.device = call->port->base.device.name,
                             .requested_bytes = call->requested_bytes};
  const int needed = tarni_cu_group_version(group);
  const int present = call->driver->version;
  return tarni_fail(TARN_UNSUPPORTED, call->operation, &facts,
                    "Update the NVIDIA driver, or use what remains.",
                    "driver or device cannot do this; it needs a driver of CUDA %d.%d, this one "
                    "is of %d.%d; without it %s",
                    needed / 1000, needed % 1000 / 10, present / 1000, present % 1000 / 10,
                    tarni_cu_group_fallback(group));
}

/* The first code that breaks the context is the one that every later call reports. */
static void note_lost(tarni_cuda_port *port, tarni_cu_result code) {
  if (TARNI_UNLIKELY(tarni_cuda_is_lost(code))) {
    int working = TARNI_CU_SUCCESS;
    (void)atomic_compare_exchange_strong_explicit(&port->lost_code, &working, code,
                                                  memory_order_relaxed, memory_order_relaxed);
  }
}

static tarn_status enter_context(tarni_cuda_call *call) {
  tarni_cu_context current = NULL;
  tarni_cu_result code = call->driver->context_current(&current);
  if (TARNI_LIKELY(code == TARNI_CU_SUCCESS && current == call->port->context)) {
    return TARN_OK;
  }
  if (code == TARNI_CU_SUCCESS) {
    code = call->driver->context_push(call->port->context);
    call->is_pushed = code == TARNI_CU_SUCCESS;
  }
  if (code == TARNI_CU_SUCCESS) {
    return TARN_OK;
  }
  note_lost(call->port, code);
  call->operation = "cuCtxPushCurrent";
  /* A context that cannot be entered is one that its owner has destroyed. */
  return fail_call(call, code == TARNI_CU_INVALID_CONTEXT ? TARNI_CU_CONTEXT_IS_DESTROYED : code);
}

tarn_status tarni_cuda_call_begin(tarni_port *port, tarn_call kind, uint64_t requested_bytes,
                                  tarni_cuda_call *call) {
  tarni_cuda_port *cuda = tarni_cuda_of(port);
  *call = (tarni_cuda_call){.port = cuda,
                            .driver = cuda->driver,
                            .operation = tarni_cuda_call_entry(kind),
                            .requested_bytes = requested_bytes,
                            .kind = kind};
  if (TARNI_UNLIKELY(tarni_cu_forked())) {
    return tarni_cuda_fail_forked(call->operation);
  }
  const tarni_cu_group group = (tarni_cu_group)call_groups[kind];
  if (TARNI_UNLIKELY(!cuda->has[group])) {
    return fail_missing(call, group);
  }
  const int lost_code = atomic_load_explicit(&cuda->lost_code, memory_order_relaxed);
  if (TARNI_UNLIKELY(lost_code != TARNI_CU_SUCCESS && !gives_back[kind])) {
    return fail_call(call, lost_code);
  }
  TARN_TRY(enter_context(call));
  call->start_ns = monotonic_ns();
  return TARN_OK;
}

tarn_status tarni_cuda_call_end(tarni_cuda_call *call, tarni_cu_result code) {
  tarni_port_count(&call->port->base, call->kind, monotonic_ns() - call->start_ns);
  if (call->is_pushed) {
    tarni_cu_context popped = NULL;
    (void)call->driver->context_pop(&popped);
    tarn_assert(popped == NULL || popped == call->port->context);
  }
  if (TARNI_LIKELY(code == TARNI_CU_SUCCESS)) {
    return TARN_OK;
  }
  note_lost(call->port, code);
  return fail_call(call, code);
}
