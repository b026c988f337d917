/* SPDX-License-Identifier: MIT
 *
 * The public face of the simulated GPU (tarn/sim.h): kernels, owners, findings, faults. */
#include "base/fork.h"
#include "port/sim/sim.h"

static tarn_status control_begin(tarn_device *handle, const char *operation, sim_device **device) {
  tarni_port *port = (tarni_port *)handle;
  if (port == NULL || port->table != &tarni_port_sim) {
    return tarni_fail(port == NULL ? TARN_INVALID : TARN_UNSUPPORTED, operation, NULL,
                      "Open the simulated GPU: tarn_device_open(\"sim\", &device).",
                      "the device is %s, not a simulated GPU",
                      port == NULL ? "NULL" : port->device.name);
  }
  if (port->fork != tarni_fork_count()) {
    return tarni_fail(TARN_FORKED, operation, NULL,
                      "Open devices after fork, in the process that uses them.",
                      "the parent process opened %s", port->device.name);
  }
  *device = (sim_device *)port;
  tarni_sim_lock();
  return TARN_OK;
}

static tarn_status output_check(const void *output, const char *operation) {
  return output != NULL ? TARN_OK
                        : tarni_fail(TARN_INVALID, operation, NULL, "Pass an address for it.",
                                     "the result's address is NULL");
}

static tarn_status control_end(tarn_status status) {
  tarni_sim_unlock();
  return status;
}

tarn_status tarn_sim_launch(tarn_device *handle, const tarn_sim_kernel *kernel,
                            tarn_stream stream) {
  tarn_sim_kernel known;
  TARN_TRY(tarni_struct_in(kernel, &known, sizeof(known), "tarn_sim_launch"));
  if ((known.n_ranges != 0 && known.ranges == NULL) || known.n_ranges > UINT32_MAX) {
    return tarni_fail(TARN_INVALID, "tarn_sim_launch", NULL, "Pass the ranges, or none.",
                      "%zu ranges at a NULL pointer, or too many", known.n_ranges);
  }
  sim_device *device = NULL;
  TARN_TRY(control_begin(handle, "tarn_sim_launch", &device));
  tarn_status status = tarni_sim_broken(device, "tarn_sim_launch");
  if (status == TARN_OK) {
    status = tarni_sim_kernel(device, &known, stream);
    tarni_sim_tick(device);
  }
  return control_end(status);
}

/* ---- Owners ---- */

static tarn_status owner_set(tarn_device *handle, tarn_ptr address, uint64_t bytes, uint64_t owner,
                             const char *operation) {
  sim_device *device = NULL;
  TARN_TRY(control_begin(handle, operation, &device));
  if (bytes == 0 || !tarni_sim_range_is_mapped(device, address, bytes)) {
    return control_end(tarni_fail(TARN_RANGE, operation, NULL, "Name memory that is mapped.",
                                  "not all of the %llu bytes at 0x%llx are mapped",
                                  (unsigned long long)bytes, (unsigned long long)address));
  }
  return control_end(tarni_sim_oracle_own(device, address, bytes, owner, owner == 0)
                         ? TARN_OK
                         : tarni_sim_no_host_memory(device, operation));
}

tarn_status tarn_sim_own(tarn_device *handle, tarn_ptr address, uint64_t bytes, uint64_t owner) {
  if (owner == 0) {
    return tarni_fail(TARN_INVALID, "tarn_sim_own", NULL,
                      "Name the owner by any other number; tarn_sim_disown gives a range back.",
                      "the owner is 0");
  }
  return owner_set(handle, address, bytes, owner, "tarn_sim_own");
}

tarn_status tarn_sim_disown(tarn_device *handle, tarn_ptr address, uint64_t bytes) {
  return owner_set(handle, address, bytes, 0, "tarn_sim_disown");
}

/* ---- Findings ---- */

tarn_status tarn_sim_finding_count(tarn_device *handle, uint64_t *count) {
  sim_device *device = NULL;
  TARN_TRY(output_check(count, "tarn_sim_finding_count"));
  *count = 0;
  TARN_TRY(control_begin(handle, "tarn_sim_finding_count", &device));
  *count = device->n_findings;
  return control_end(TARN_OK);
}

tarn_status tarn_sim_finding_get(tarn_device *handle, size_t index, tarn_sim_finding *finding) {
  sim_device *device = NULL;
  TARN_TRY(control_begin(handle, "tarn_sim_finding_get", &device));
  const uint64_t n = device->n_findings < SIM_MAX_FINDINGS ? device->n_findings : SIM_MAX_FINDINGS;
  if (index >= n) {
    return control_end(tarni_fail(TARN_RANGE, "tarn_sim_finding_get", NULL,
                                  "Ask for a smaller index; the first 64 findings are kept.",
                                  "finding %zu of %llu", index, (unsigned long long)n));
  }
  return control_end(tarni_struct_out(finding, &device->findings[index], sizeof(*finding),
                                      "tarn_sim_finding_get"));
}

tarn_status tarn_sim_finding_clear(tarn_device *handle) {
  sim_device *device = NULL;
  TARN_TRY(control_begin(handle, "tarn_sim_finding_clear", &device));
  device->n_findings = 0;
  return control_end(TARN_OK);
}

tarn_status tarn_sim_set_on_finding(tarn_device *handle, tarn_sim_on_finding callback, void *user) {
  sim_device *device = NULL;
  TARN_TRY(control_begin(handle, "tarn_sim_set_on_finding", &device));
  device->on_finding = callback;
  device->on_finding_user = user;
  return control_end(TARN_OK);
}

/* ---- Faults, state ---- */

tarn_status tarn_sim_fail(tarn_device *handle, tarn_call call, uint64_t nth, uint64_t times,
                          int driver_code) {
  sim_device *device = NULL;
  if ((unsigned)call > TARN_CALL_COUNT) {
    return tarni_fail(TARN_INVALID, "tarn_sim_fail", NULL,
                      "Name a call of TARN_CALL_MAP, or TARN_CALL_COUNT for any.",
                      "%d is not a kind of call", (int)call);
  }
  if (!tarni_sim_code_can_fail(driver_code, call)) {
    return tarni_fail(TARN_INVALID, "tarn_sim_fail", NULL,
                      "Plan it for TARN_CALL_STREAM_QUERY or TARN_CALL_EVENT_QUERY.",
                      "%d (not ready) is an answer to queries only, not to %s", driver_code,
                      call < TARN_CALL_COUNT ? tarn_call_name(call) : "any call");
  }
  TARN_TRY(control_begin(handle, "tarn_sim_fail", &device));
  device->fault = (sim_fault){.call = call,
                              .nth = nth,
                              .times = times,
                              .is_endless = times == 0,
                              .code = driver_code != 0 ? driver_code : SIM_CUDA_OUT_OF_MEMORY};
  return control_end(TARN_OK);
}

tarn_status tarn_sim_failed(tarn_device *handle, uint64_t *count) {
  sim_device *device = NULL;
  TARN_TRY(output_check(count, "tarn_sim_failed"));
  *count = 0;
  TARN_TRY(control_begin(handle, "tarn_sim_failed", &device));
  *count = device->n_faults;
  return control_end(TARN_OK);
}

tarn_status tarn_sim_get_state(tarn_device *handle, tarn_sim_state *state) {
  sim_device *device = NULL;
  TARN_TRY(control_begin(handle, "tarn_sim_get_state", &device));
  const tarn_sim_state now = {.size = sizeof(now),
                              .virtual_ns = device->now_ns,
                              .created_bytes = device->created_bytes,
                              .peak_bytes = device->peak_bytes,
                              .mapped_bytes = device->mapped_bytes,
                              .pending_operations = device->n_pending_operations,
                              .operations = device->n_operations};
  return control_end(tarni_struct_out(state, &now, sizeof(now), "tarn_sim_get_state"));
}

tarn_status tarn_sim_progress(tarn_device *handle, uint64_t operations) {
  sim_device *device = NULL;
  TARN_TRY(control_begin(handle, "tarn_sim_progress", &device));
  while (operations-- != 0 && tarni_sim_step(device)) {
  }
  return control_end(TARN_OK);
}
