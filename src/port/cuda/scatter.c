/* SPDX-License-Identifier: MIT
 *
 * Many small copies by one kernel. The driver's own batch costs 1.6 us a copy; a kernel that gets
 * the list of them with its parameters costs 16 us in all. It is written in PTX, which the driver
 * compiles for the device at hand.
 *
 * A kernel that touches memory that is not there breaks the context for good, where a copy is
 * merely refused: only what the driver itself says can be read and written is left to the kernel.
 *
 * Owns the kernel of a port: made once, by the first that gets ready; others go without it until it
 * is there. No locks. */
#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

enum {
  SCATTER_LEAST = 4,                 /* fewer copies are left to the driver */
  SCATTER_PIECES = TARNI_CUDA_BATCH, /* of one launch: a parameter of less than 4 KiB */
  SCATTER_ODD_SIZE = 16 << 10,       /* so are copies of bytes, not words, from here on */
  SCATTER_SIZE = 64 << 10,           /* larger copies are better made by the copy engines */
  SCATTER_THREADS = 256,             /* of a block */
  SCATTER_SLICE = 4 << 10,           /* what a block copies at a time, 16 bytes a thread */
  SCATTER_MOST_SLICES = 16,          /* of a copy */
  SCATTER_RANGES = 4,
};

/* As the kernel reads it. */
typedef struct scatter_piece {
  uint64_t destination, source;
  uint32_t size, reserved;
} scatter_piece;

/* A block of threads for each piece and slice of it; each thread copies 16 bytes, 4 or one at a
 * time, as all of address, address and size allow. Loads go past the caches: the host may have
 * written there since the last launch. */
static const char scatter_text[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry tarn_scatter(.param .align 8 .b8 list[3072]) {\n"
    "  .reg .pred %p;\n"
    "  .reg .b16 %h;\n"
    "  .reg .b32 %r<12>;\n"
    "  .reg .b64 %a<10>;\n"
    "  mov.u32 %r0, %ctaid.x;\n"
    "  mul.wide.u32 %a0, %r0, 24;\n"
    "  mov.b64 %a1, list;\n"
    "  add.u64 %a1, %a1, %a0;\n"
    "  ld.param.u64 %a2, [%a1];\n"
    "  ld.param.u64 %a3, [%a1+8];\n"
    "  ld.param.u32 %r1, [%a1+16];\n"
    "  cvta.to.global.u64 %a2, %a2;\n"
    "  cvta.to.global.u64 %a3, %a3;\n"
    /* %a4: offset, %a5: step, %a6: size; in threads first */
    "  mov.u32 %r2, %ctaid.y;\n"
    "  mov.u32 %r3, %ntid.x;\n"
    "  mov.u32 %r4, %tid.x;\n"
    "  mad.lo.u32 %r2, %r2, %r3, %r4;\n"
    "  mov.u32 %r4, %nctaid.y;\n"
    "  mul.lo.u32 %r3, %r3, %r4;\n"
    "  cvt.u64.u32 %a4, %r2;\n"
    "  cvt.u64.u32 %a5, %r3;\n"
    "  cvt.u64.u32 %a6, %r1;\n"
    "  or.b64 %a7, %a2, %a3;\n"
    "  or.b64 %a7, %a7, %a6;\n"
    "  and.b64 %a8, %a7, 15;\n"
    "  setp.eq.u64 %p, %a8, 0;\n"
    "  @%p bra by_16;\n"
    "  and.b64 %a8, %a7, 3;\n"
    "  setp.eq.u64 %p, %a8, 0;\n"
    "  @%p bra by_4;\n"
    "by_1:\n"
    "  setp.ge.u64 %p, %a4, %a6;\n"
    "  @%p bra done;\n"
    "  add.u64 %a7, %a3, %a4;\n"
    "  add.u64 %a8, %a2, %a4;\n"
    "  ld.global.cv.u8 %h, [%a7];\n"
    "  st.global.u8 [%a8], %h;\n"
    "  add.u64 %a4, %a4, %a5;\n"
    "  bra by_1;\n"
    "by_4:\n"
    "  shl.b64 %a4, %a4, 2;\n"
    "  shl.b64 %a5, %a5, 2;\n"
    "next_4:\n"
    "  setp.ge.u64 %p, %a4, %a6;\n"
    "  @%p bra done;\n"
    "  add.u64 %a7, %a3, %a4;\n"
    "  add.u64 %a8, %a2, %a4;\n"
    "  ld.global.cv.u32 %r5, [%a7];\n"
    "  st.global.u32 [%a8], %r5;\n"
    "  add.u64 %a4, %a4, %a5;\n"
    "  bra next_4;\n"
    "by_16:\n"
    "  shl.b64 %a4, %a4, 4;\n"
    "  shl.b64 %a5, %a5, 4;\n"
    "next_16:\n"
    "  setp.ge.u64 %p, %a4, %a6;\n"
    "  @%p bra done;\n"
    "  add.u64 %a7, %a3, %a4;\n"
    "  add.u64 %a8, %a2, %a4;\n"
    "  ld.global.cv.v4.u32 {%r5, %r6, %r7, %r8}, [%a7];\n"
    "  st.global.v4.u32 [%a8], {%r5, %r6, %r7, %r8};\n"
    "  add.u64 %a4, %a4, %a5;\n"
    "  bra next_16;\n"
    "done:\n"
    "  ret;\n"
    "}\n";

/* ---- The kernel ---- */

/* Whether a kernel finds pinned memory where the host has it, and anybody would use one. */
static bool can_scatter(const tarni_cuda_port *port) {
  return port->has[TARNI_CU_GROUP_KERNEL] && port->base.device.has_batch_copy && port->is_unified &&
         port->is_unified_registered;
}

/* pre: the port's context is current. */
static tarni_cu_result kernel_load(const tarni_cu_driver *driver, tarni_cu_function *function) {
  tarni_cu_module module = NULL;
  const tarni_cu_result code = driver->module_load(&module, scatter_text);
  return code == TARNI_CU_SUCCESS ? driver->module_function(function, module, "tarn_scatter")
                                  : code;
}

/* Without it all works, slower: so nothing is told of a failure, and only after a shortage it is
 * tried again. The code stays as long as its context. To unload it would wait for all work of the
 * device, break captures, and crash where its owner has destroyed the context. */
void tarni_cuda_copy_prepare(tarni_port *port) {
  tarni_cuda_port *cuda = tarni_cuda_of(port);
  const tarni_cu_driver *driver = cuda->driver;
  bool is_tried = false;
  if (!can_scatter(cuda) || tarni_cu_forked() ||
      atomic_load_explicit(&cuda->lost_code, memory_order_relaxed) != TARNI_CU_SUCCESS ||
      !atomic_compare_exchange_strong(&cuda->is_scatter_tried, &is_tried, true)) {
    return;
  }
  tarni_cu_function function = NULL;
  tarni_cu_result code = driver->context_push(cuda->context);
  if (code == TARNI_CU_SUCCESS) {
    tarni_cu_context popped = NULL;
    code = kernel_load(driver, &function);
    (void)driver->context_pop(&popped);
  }
  if (code == TARNI_CU_SUCCESS) {
    atomic_store_explicit(&cuda->scatter, function, memory_order_release);
  } else if (code == TARNI_CU_OUT_OF_MEMORY) {
    atomic_store(&cuda->is_scatter_tried, false);
  }
}

/* ---- What a kernel can touch ---- */

/* The last few ranges that were found: most pieces of a batch lie in the same ones. */
typedef struct scatter_ranges {
  uint64_t first[SCATTER_RANGES], bytes[SCATTER_RANGES];
  unsigned next;
} scatter_ranges;

static bool range_holds(uint64_t first, uint64_t bytes, uint64_t address, uint64_t size) {
  return address >= first && address - first <= bytes && size <= bytes - (address - first);
}

typedef enum scatter_reach { REACH_UNKNOWN, REACH_DRIVER, REACH_KERNEL } scatter_reach;

/* What the driver knows of an address: nothing; something, or not all of it; that it lies in one
 * allocation, or one mapping of a chunk, that the device may read and write. */
static scatter_reach reach_of(const tarni_cu_driver *driver, scatter_ranges *ranges,
                              uint64_t address, uint64_t size) {
  for (unsigned i = 0; i < SCATTER_RANGES; i++) {
    if (range_holds(ranges->first[i], ranges->bytes[i], address, size)) {
      return REACH_KERNEL;
    }
  }
  tarni_cu_address first = 0;
  size_t bytes = 0;
  unsigned access = 0;
  if (driver->address_range(&first, &bytes, address) != TARNI_CU_SUCCESS) {
    return REACH_UNKNOWN;
  }
  if (!range_holds(first, bytes, address, size) ||
      driver->pointer_attribute(&access, TARNI_CU_POINTER_ACCESS, address) != TARNI_CU_SUCCESS ||
      access != TARNI_CU_ACCESS_READ_WRITE) {
    return REACH_DRIVER;
  }
  ranges->first[ranges->next] = first;
  ranges->bytes[ranges->next] = bytes;
  ranges->next = (ranges->next + 1) % SCATTER_RANGES;
  return REACH_KERNEL;
}

/* ---- Copying ---- */

/* Copies, sorted: those for the kernel, and those for the driver. */
typedef struct scatter_list {
  scatter_piece pieces[SCATTER_PIECES];
  unsigned count;
  uint32_t largest;
  tarni_copy left[SCATTER_PIECES];
  uint64_t n_left;
} scatter_list;

static bool is_small(const tarni_copy *copy) {
  const bool is_odd = ((copy->destination | copy->source | copy->size) & 3) != 0;
  return copy->size <= (is_odd ? SCATTER_ODD_SIZE : SCATTER_SIZE);
}

/* False: an address that the driver does not know. It would take it for ordinary memory of the host
 * and look there, whatever that does to the process. */
static bool list_add(scatter_list *list, const tarni_cu_driver *driver, scatter_ranges *ranges,
                     const tarni_copy *copy, bool has_kernel) {
  const scatter_reach to = reach_of(driver, ranges, copy->destination, copy->size);
  const scatter_reach from = reach_of(driver, ranges, copy->source, copy->size);
  if (to == REACH_UNKNOWN || from == REACH_UNKNOWN) {
    return false;
  }
  if (!has_kernel || !is_small(copy) || to != REACH_KERNEL || from != REACH_KERNEL) {
    list->left[list->n_left++] = *copy;
    return true;
  }
  list->pieces[list->count++] = (scatter_piece){
      .destination = copy->destination, .source = copy->source, .size = (uint32_t)copy->size};
  list->largest = (uint32_t)tarni_max(list->largest, copy->size);
  return true;
}

static tarni_cu_result list_launch(const tarni_cuda_call *call, scatter_list *list,
                                   tarni_cu_function kernel, tarn_stream stream) {
  const unsigned n_slices = (list->largest - 1) / SCATTER_SLICE + 1;
  void *parameters[] = {list->pieces};
  return call->driver->launch(kernel, list->count,
                              (unsigned)tarni_min(n_slices, SCATTER_MOST_SLICES), 1,
                              SCATTER_THREADS, 1, 1, 0, stream, parameters, NULL);
}

static tarn_status refuse_copy(tarni_cuda_call *call, const tarni_copy *copy) {
  (void)tarni_cuda_call_end(call, TARNI_CU_SUCCESS);
  const tarni_facts facts = {.device = call->port->base.device.name, .requested_bytes = copy->size};
  return tarni_fail(TARN_INVALID, call->operation, &facts,
                    "Copy between memory of the device that is allocated and pinned host memory.",
                    "%llu bytes from 0x%llx to 0x%llx: the driver does not know one of the two",
                    (unsigned long long)copy->size, (unsigned long long)copy->source,
                    (unsigned long long)copy->destination);
}

tarn_status tarni_cuda_scatter(tarni_cuda_call *call, const tarni_copy *copies, uint64_t count,
                               tarn_stream stream, tarni_copy_way way) {
  tarni_cu_function kernel = atomic_load_explicit(&call->port->scatter, memory_order_acquire);
  const bool has_kernel = kernel != NULL && count >= SCATTER_LEAST && way == TARNI_COPY_FAST;
  scatter_ranges ranges = {0};
  scatter_list list;
  list.count = 0;
  list.largest = 0;
  list.n_left = 0;
  for (uint64_t i = 0; i < count; i++) {
    if (!list_add(&list, call->driver, &ranges, &copies[i], has_kernel)) {
      return refuse_copy(call, &copies[i]);
    }
  }
  if (list.count != 0) {
    const tarni_cu_result code = list_launch(call, &list, kernel, stream);
    if (tarni_cuda_is_lost(code)) {
      call->operation = "cuLaunchKernel";
      return tarni_cuda_call_end(call, code);
    }
    if (code !=
        TARNI_CU_SUCCESS) { /* as on a stream of another context: the driver makes them all */
      return tarni_cuda_call_end(call, tarni_cuda_batch_of(call, copies, count, stream));
    }
  }
  return tarni_cuda_call_end(call, list.n_left != 0
                                       ? tarni_cuda_batch_of(call, list.left, list.n_left, stream)
                                       : TARNI_CU_SUCCESS);
}
