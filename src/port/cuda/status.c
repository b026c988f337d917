/* SPDX-License-Identifier: MIT
 *
 * What the driver's codes mean to tarn, and what the reader of an error can do about each. One
 * table; codes that are not in it are TARN_DRIVER. No locks, no driver calls but the name of a
 * code. */
#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

/* Codes from first to last: their status, whether they break the context, and the remedy. */
typedef struct code_meaning {
  tarni_cu_result first;
  tarni_cu_result last;
  tarn_status status;
  bool is_lost;
  const char *remedy;
} code_meaning;

#define ONE_CODE(name) TARNI_CU_##name, TARNI_CU_##name
#define LOST_BY_WORK                                                                               \
  "The context is lost: the work before this call broke it. Run the program under "                \
  "compute-sanitizer to find the kernel, and restart the process."
#define LOST_BY_HARDWARE                                                                           \
  "The context is lost by a fault of the hardware. Look at dmesg and nvidia-smi -q, and restart "  \
  "the process."
#define LOST_BY_CALLER                                                                             \
  "The context is gone. Close tarn's objects before the context is destroyed or the process ends."

static const code_meaning code_meanings[] = {
    {ONE_CODE(INVALID_VALUE), TARN_INVALID, false,
     "Check that the addresses, sizes and handles are live and of this device."},
    {ONE_CODE(OUT_OF_MEMORY), TARN_DEVICE_MEMORY, false,
     "Free or trim memory on this device, ask for less, or look with nvidia-smi for other "
     "processes that hold it."},
    {ONE_CODE(DEINITIALIZED), TARN_DEVICE_LOST, true, LOST_BY_CALLER},
    {ONE_CODE(STUB_LIBRARY), TARN_NO_DRIVER, false,
     "Remove the toolkit's folder lib64/stubs from LD_LIBRARY_PATH: the libcuda there is for "
     "linking only."},
    {ONE_CODE(DEVICE_UNAVAILABLE), TARN_DRIVER, false,
     "Another process holds the device exclusively. Wait for it, or change the compute mode with "
     "nvidia-smi -c."},
    {ONE_CODE(NO_DEVICE), TARN_NO_DEVICE, false,
     "Check CUDA_VISIBLE_DEVICES and nvidia-smi -L, or use the device \"sim\"."},
    {ONE_CODE(INVALID_DEVICE), TARN_NO_DEVICE, false,
     "Use a device that tarn_device_list lists, or \"sim\"."},
    {ONE_CODE(INVALID_CONTEXT), TARN_DRIVER, false,
     "Check that the stream or event belongs to the context that was current when the device was "
     "opened."},
    {ONE_CODE(ECC_UNCORRECTABLE), TARN_DEVICE_LOST, true, LOST_BY_HARDWARE},
    {ONE_CODE(NVLINK_UNCORRECTABLE), TARN_DEVICE_LOST, true, LOST_BY_HARDWARE},
    {ONE_CODE(CONTAINED), TARN_DEVICE_LOST, true, LOST_BY_HARDWARE},
    {ONE_CODE(OPERATING_SYSTEM), TARN_DRIVER, false,
     "The operating system refused. Check ulimit -l, ulimit -n and the container's permissions."},
    {ONE_CODE(INVALID_HANDLE), TARN_INVALID, false,
     "Check that the stream, event or graph is live and of this device."},
    {ONE_CODE(ILLEGAL_STATE), TARN_STATE, false,
     "The object is not in a state that allows the call; for the end of a capture, begin one "
     "first."},
    {ONE_CODE(NOT_READY), TARN_NOT_READY, false, ""},
    {ONE_CODE(ILLEGAL_ADDRESS), TARN_DEVICE_LOST, true, LOST_BY_WORK},
    {ONE_CODE(LAUNCH_TIMEOUT), TARN_DEVICE_LOST, true, LOST_BY_WORK},
    {ONE_CODE(CONTEXT_IS_DESTROYED), TARN_DEVICE_LOST, true, LOST_BY_CALLER},
    {ONE_CODE(ASSERT), TARN_DEVICE_LOST, true, LOST_BY_WORK},
    {ONE_CODE(HOST_MEMORY_ALREADY_REGISTERED), TARN_STATE, false,
     "Unregister the range first; a byte of host memory can be registered once."},
    {ONE_CODE(HOST_MEMORY_NOT_REGISTERED), TARN_STATE, false,
     "Unregister a range by the pointer with which it was registered, once."},
    {TARNI_CU_HARDWARE_STACK_ERROR, TARNI_CU_LAUNCH_FAILED, TARN_DEVICE_LOST, true, LOST_BY_WORK},
    {ONE_CODE(TENSOR_MEMORY_LEAK), TARN_DEVICE_LOST, true, LOST_BY_WORK},
    {ONE_CODE(NOT_PERMITTED), TARN_DRIVER, false,
     "Check the permissions of this process or container on the device."},
    {ONE_CODE(NOT_SUPPORTED), TARN_UNSUPPORTED, false,
     "Look at the device's capabilities (tarn info), and choose a backing that needs less."},
    {ONE_CODE(SYSTEM_NOT_READY), TARN_DRIVER, false,
     "Start the system services that the device needs, such as nvidia-fabricmanager."},
    {ONE_CODE(SYSTEM_DRIVER_MISMATCH), TARN_DRIVER, false,
     "The kernel's driver and libcuda differ in version. Restart the machine after an update, or "
     "mount the host's libcuda into the container."},
    {ONE_CODE(COMPAT_NOT_SUPPORTED_ON_DEVICE), TARN_DRIVER_OLD, false,
     "Update the kernel's driver: the compatibility libcuda does not support this device."},
    {ONE_CODE(MPS_CLIENT_TERMINATED), TARN_DEVICE_LOST, true, LOST_BY_CALLER},
    {TARNI_CU_STREAM_CAPTURE_UNSUPPORTED, TARNI_CU_STREAM_CAPTURE_WRONG_THREAD, TARN_CAPTURE, false,
     "Make this call before the capture begins or after it ends; what a capture allows is in "
     "docs/design.md."},
    {ONE_CODE(EXTERNAL_DEVICE), TARN_DEVICE_LOST, true, LOST_BY_HARDWARE},
};

static const code_meaning *find_meaning(tarni_cu_result code) {
  static const code_meaning unlisted = {
      0, 0, TARN_DRIVER, false,
      "Look the driver's code up in its documentation, and look at dmesg and nvidia-smi -q."};
  for (size_t i = 0; i < sizeof(code_meanings) / sizeof(code_meanings[0]); i++) {
    if (code >= code_meanings[i].first && code <= code_meanings[i].last) {
      return &code_meanings[i];
    }
  }
  return &unlisted;
}

tarn_status tarni_cuda_status(tarni_cu_result code) {
  return code == TARNI_CU_SUCCESS ? TARN_OK : find_meaning(code)->status;
}

bool tarni_cuda_is_lost(tarni_cu_result code) {
  return code != TARNI_CU_SUCCESS && find_meaning(code)->is_lost;
}

/* Of shortages that are not of device memory. */
static const char *shortage_remedy(tarn_status shortage) {
  return shortage == TARN_HOST_MEMORY
             ? "Free pinned memory, ask for less, or raise the limits of locked memory (ulimit -l) "
               "and of the container's memory."
             : "Release reservations that are not used, ask for less, or raise the limit of "
               "address "
               "space (ulimit -v).";
}

tarn_status tarni_cuda_fail(const tarni_cuda_failure *failure) {
  tarn_assert(failure->code != TARNI_CU_SUCCESS);
  if (failure->code == TARNI_CU_NOT_READY) {
    return TARN_NOT_READY;
  }
  const code_meaning *meaning = find_meaning(failure->code);
  const bool is_other = failure->code == TARNI_CU_OUT_OF_MEMORY && failure->shortage != TARN_OK &&
                        failure->shortage != TARN_DEVICE_MEMORY;
  const tarn_status status = is_other ? failure->shortage : meaning->status;
  const char *remedy = is_other ? shortage_remedy(failure->shortage) : meaning->remedy;
  const tarni_facts facts = {.device = failure->device,
                             .requested_bytes = failure->requested_bytes,
                             .driver_code = failure->code,
                             .driver_name = tarni_cu_code_name(failure->code)};
  if (failure->requested_bytes != 0) {
    return tarni_fail(status, failure->operation, &facts, remedy,
                      "%s: %llu bytes were asked for, and the driver answered %s (%d)",
                      tarn_status_text(status), (unsigned long long)failure->requested_bytes,
                      facts.driver_name, failure->code);
  }
  return tarni_fail(status, failure->operation, &facts, remedy, "%s: the driver answered %s (%d)",
                    tarn_status_text(status), facts.driver_name, failure->code);
}

tarn_status tarni_cuda_fail_forked(const char *operation) {
  return tarni_fail(TARN_FORKED, operation, NULL,
                    "Fork before the first use of CUDA, or start the child with exec.",
                    "this process was forked from one that had initialised CUDA, and the driver "
                    "does not work in such a child");
}
