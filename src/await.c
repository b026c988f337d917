/* SPDX-License-Identifier: MIT
 *
 * Waiting for the whole device, on the host, where no fence can tell: a stream is gone, or broken.
 * The port has no call for it, but giving plain or pinned memory back waits for all work: so a
 * little is taken, and given back. What could not be given back is noted, is out of use meanwhile,
 * and goes back the next time. */
#include "base/bits.h"
#include "internal.h"

/* What is taken to wait with. */
static uint64_t await_bytes(const tarn_heap *heap) {
  return heap->is_fixed ? TARNI_GRANULE : heap->unit;
}

/* One that could not be given back, which is out of use meanwhile; address 0: there is none. */
static tarni_unreturned unreturned_take(tarn_heap *heap) {
  tarni_unreturned found = {0};
  tarni_lock_acquire(&heap->lock);
  for (int i = 0; i < TARNI_UNRETURNED && found.address == 0; i++) {
    found = heap->unreturned[i];
    heap->unreturned[i] = (tarni_unreturned){0};
  }
  heap->unreturned_bytes -= found.address != 0 && !found.is_pinned ? await_bytes(heap) : 0;
  tarni_lock_release(&heap->lock);
  return found;
}

static void unreturned_put(tarn_heap *heap, tarni_unreturned taken) {
  int i = 0;
  tarni_lock_acquire(&heap->lock);
  while (heap->unreturned[i].address != 0) {
    i++;
    tarn_assert(i < TARNI_UNRETURNED && "as many as can wait at a time");
  }
  heap->unreturned[i] = taken;
  heap->unreturned_bytes += taken.is_pinned ? 0 : await_bytes(heap);
  tarni_held_note_locked(heap);
  tarni_lock_release(&heap->lock);
}

static tarn_status await_return(tarn_heap *heap, tarni_unreturned taken) {
  const tarn_status status =
      taken.is_pinned ? tarni_port_host_free(heap->port, (void *)(uintptr_t)taken.address)
                      : tarni_port_plain_free(heap->port, taken.address);
  if (status != TARN_OK) {
    unreturned_put(heap, taken);
  }
  return status;
}

static tarn_status await_refuse(const tarn_heap *heap) {
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(TARN_CAPTURE, "tarn_heap_trim", &facts, "Try again after the capture.",
                    "the device cannot be waited for while a capture goes on");
}

tarn_status tarni_unreturned_reap(tarn_heap *heap) {
  for (tarni_unreturned taken = unreturned_take(heap); taken.address != 0;
       taken = unreturned_take(heap)) {
    if (tarni_capture_forbids()) {
      unreturned_put(heap, taken);
      return await_refuse(heap);
    }
    TARNI_RELAXED(heap->port);
    TARN_TRY(await_return(heap, taken));
  }
  return TARN_OK;
}

/* Pinned memory to wait with, where the device has none; without, its own error stands. */
static tarn_status await_pinned(tarn_heap *heap, tarni_unreturned *taken) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  void *page;
  if (tarni_port_host_alloc(heap->port, TARNI_GRANULE, 0, &page) != TARN_OK) {
    return tarni_fail_again(&error);
  }
  *taken = (tarni_unreturned){.address = (uintptr_t)page, .is_pinned = true};
  return TARN_OK;
}

/* Plain memory is given back only when all work of the device is complete; so is pinned memory,
 * which takes longer, but is there where the device is full. */
tarn_status tarni_device_await(tarn_heap *heap) {
  if (tarni_capture_forbids()) {
    return await_refuse(heap);
  }
  TARN_TRY(tarni_unreturned_reap(heap));
  TARNI_RELAXED(heap->port);
  tarni_unreturned taken = {0};
  tarn_status status = tarni_port_plain_alloc(heap->port, await_bytes(heap), &taken.address);
  if (status == TARN_DEVICE_MEMORY && !heap->is_fixed) {
    status = await_pinned(heap, &taken);
  }
  return status == TARN_OK ? await_return(heap, taken) : status;
}
