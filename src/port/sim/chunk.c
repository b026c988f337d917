/* SPDX-License-Identifier: MIT
 *
 * The physical memory of a simulated GPU: chunks, their capacity, and sharing them. A chunk lives
 * until both its handles and its last mapping are gone. Its bytes are a range of the device's
 * memory file, or a file of its own once it is exported; the oracle's histories go with the bytes,
 * so that devices which share a chunk share them, too, and so does the account: bytes take of the
 * capacity of the device that made them until the last chunk over them is gone. Under the lock of
 * the simulated GPU. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

static uint32_t chunk_index(const sim_device *device, tarni_chunk id) {
  uint32_t low = 0, high = device->chunks.n;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const sim_chunk *chunk = device->chunks.items[middle];
    if (chunk->id < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

sim_chunk *tarni_sim_chunk_find(const sim_device *device, tarni_chunk id) {
  const uint32_t index = chunk_index(device, id);
  sim_chunk *chunk = index < device->chunks.n ? device->chunks.items[index] : NULL;
  return chunk != NULL && chunk->id == id && chunk->n_handles != 0 ? chunk : NULL;
}

/* ---- Making and dropping ---- */

static bool chunk_place(sim_device *device, sim_chunk *chunk) {
  const uint64_t rounded = tarni_align_up(chunk->size, tarni_sim_bytes_page());
  if (!tarni_sim_bytes_grow(device->file, device->file_end + rounded)) {
    return false;
  }
  chunk->file = device->file;
  chunk->file_offset = device->file_end;
  device->file_end += rounded;
  device->n_placed++;
  return true;
}

/* The chunk's bytes in the device's file are nobody's any more. */
static void chunk_displace(sim_device *device, const sim_chunk *chunk) {
  tarn_assert(chunk->file == device->file && device->n_placed != 0);
  if (--device->n_placed == 0 && tarni_sim_bytes_empty(device->file)) {
    device->file_end = 0;
    return;
  }
  tarni_sim_bytes_discard(device->file, chunk->file_offset,
                          tarni_align_up(chunk->size, tarni_sim_bytes_page()));
}

void tarni_sim_chunk_count(sim_device *device, sim_chunk *chunk) {
  chunk->shadow->payer = device;
  device->created_bytes += chunk->size;
  device->peak_bytes = tarni_max(device->peak_bytes, device->created_bytes);
}

tarn_status tarni_sim_chunk_make(sim_device *device, uint64_t size, bool is_host, sim_chunk **out) {
  if (!is_host && size > device->config.capacity_bytes - device->created_bytes) {
    return TARN_DEVICE_MEMORY;
  }
  sim_chunk *chunk = tarni_sim_store_zeroed(1, sizeof(*chunk));
  if (chunk == NULL) {
    return TARN_HOST_MEMORY;
  }
  *chunk = (sim_chunk){.size = size, .file = -1, .shadow = tarni_sim_shadow_make(size)};
  if (chunk->shadow == NULL) {
    free(chunk);
    return TARN_HOST_MEMORY;
  }
  if (!is_host && !chunk_place(device, chunk)) {
    tarni_sim_shadow_drop(chunk->shadow);
    free(chunk);
    return TARN_HOST_MEMORY;
  }
  *out = chunk;
  return TARN_OK;
}

static void chunk_destroy(sim_device *device, sim_chunk *chunk) {
  sim_device *payer = chunk->shadow->payer;
  if (payer != NULL && chunk->shadow->references == 1) {
    payer->created_bytes -= chunk->size;
  }
  if (chunk->owns_file) {
    (void)close(chunk->file);
  } else if (chunk->file >= 0) {
    chunk_displace(device, chunk);
  }
  tarni_sim_shadow_drop(chunk->shadow);
  free(chunk);
}

void tarni_sim_chunk_drop_if_unused(sim_device *device, sim_chunk *chunk) {
  if (chunk->n_handles != 0 || chunk->n_mappings != 0) {
    return;
  }
  const uint32_t index = chunk_index(device, chunk->id);
  if (index < device->chunks.n && device->chunks.items[index] == chunk) {
    tarni_sim_array_remove(&device->chunks, index);
  }
  chunk_destroy(device, chunk);
}

/* Gives the chunk its id and its first handle. On failure the chunk is gone. */
static bool chunk_register(sim_device *device, sim_chunk *chunk) {
  chunk->id = device->last_chunk + 1;
  if (!tarni_sim_array_insert(&device->chunks, device->chunks.n, chunk)) {
    chunk_destroy(device, chunk);
    return false;
  }
  device->last_chunk = chunk->id;
  chunk->n_handles = 1;
  return true;
}

static tarn_status chunk_create(sim_device *device, uint64_t size, tarni_chunk *out) {
  if (!tarni_is_aligned(size, device->config.granularity_bytes)) {
    return tarni_sim_fail_code(device, SIM_CUDA_INVALID_VALUE, "cuMemCreate", size);
  }
  sim_chunk *chunk;
  const tarn_status status = tarni_sim_chunk_make(device, size, false, &chunk);
  if (status == TARN_DEVICE_MEMORY) {
    return tarni_sim_fail_code(device, SIM_CUDA_OUT_OF_MEMORY, "cuMemCreate", size);
  }
  if (status != TARN_OK || !chunk_register(device, chunk)) {
    return tarni_sim_no_host_memory(device, "cuMemCreate");
  }
  tarni_sim_chunk_count(device, chunk);
  *out = chunk->id;
  return TARN_OK;
}

tarn_status tarni_sim_create(tarni_port *port, uint64_t size, tarni_chunk *out) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_CREATE, size));
  return tarni_sim_end(device, chunk_create(device, size, out));
}

tarn_status tarni_sim_release(tarni_port *port, tarni_chunk id) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_RELEASE, 0));
  sim_chunk *chunk = tarni_sim_chunk_find(device, id);
  if (chunk == NULL) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemRelease",
                                                  "a chunk that does not exist was released", id));
  }
  tarni_sim_charge(device, TARN_CALL_RELEASE, 0, chunk->size);
  chunk->n_handles--;
  tarni_sim_chunk_drop_if_unused(device, chunk);
  return tarni_sim_end(device, TARN_OK);
}

/* ---- Sharing ---- */

/* Shows the chunk's bytes, as they are in this file, wherever the chunk is mapped with access.
 * False: not everywhere. */
static bool chunk_show(sim_device *device, const sim_chunk *chunk, int file, uint64_t offset) {
  bool is_good = true;
  for (uint32_t i = 0; i < device->regions.n; i++) {
    const sim_region *region = device->regions.items[i];
    for (uint32_t j = 0; j < region->mappings.n; j++) {
      const sim_mapping *mapping = region->mappings.items[j];
      if (mapping->chunk == chunk && mapping->has_access) {
        is_good =
            tarni_sim_bytes_map((void *)(uintptr_t)mapping->address, mapping->size, file, offset) &&
            is_good;
      }
    }
  }
  return is_good;
}

/* Moves a chunk into a file of its own, under the mappings that it has. */
static bool chunk_move_out(sim_device *device, sim_chunk *chunk) {
  const int file = tarni_sim_bytes_file();
  struct stat facts;
  if (file < 0) {
    return false;
  }
  if (!tarni_sim_bytes_grow(file, chunk->size) || fstat(file, &facts) != 0 ||
      !tarni_sim_bytes_transfer(chunk->file, chunk->file_offset, file, chunk->size)) {
    (void)close(file);
    return false;
  }
  if (!chunk_show(device, chunk, file, 0)) {
    (void)chunk_show(device, chunk, chunk->file, chunk->file_offset);
    (void)close(file);
    return false;
  }
  chunk_displace(device, chunk);
  chunk->file = file;
  chunk->file_offset = 0;
  chunk->owns_file = true;
  chunk->inode = facts.st_ino;
  return true;
}

tarn_status tarni_sim_export(tarni_port *port, tarni_chunk id, int *descriptor) {
  const char *entry = "cuMemExportToShareableHandle";
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EXPORT, 0));
  sim_chunk *chunk = tarni_sim_chunk_find(device, id);
  if (chunk == NULL) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, entry,
                                                  "a chunk that does not exist was exported", id));
  }
  const bool is_out = chunk->owns_file || chunk_move_out(device, chunk);
  const int copy = is_out && !tarni_sim_store_strikes() ? dup(chunk->file) : -1;
  if (copy < 0) {
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, entry));
  }
  *descriptor = copy;
  return tarni_sim_end(device, TARN_OK);
}

static sim_chunk *chunk_by_inode(const sim_device *device, uint64_t inode) {
  for (uint32_t i = 0; i < device->chunks.n; i++) {
    sim_chunk *chunk = device->chunks.items[i];
    if (chunk->inode == inode) {
      return chunk;
    }
  }
  return NULL;
}

/* The histories of a chunk that another device of this process exported. */
static void chunk_share_shadow(sim_chunk *chunk) {
  for (const sim_device *other = tarni_sim_world.devices; other != NULL; other = other->next) {
    const sim_chunk *same = chunk_by_inode(other, chunk->inode);
    if (same != NULL && same->size == chunk->size) {
      tarni_sim_shadow_drop(chunk->shadow);
      chunk->shadow = same->shadow;
      chunk->shadow->references++;
      return;
    }
  }
}

/* A chunk over an exported file. Of one that another process uses, too, the oracle watches this
 * process's uses only. */
static sim_chunk *chunk_adopt(sim_device *device, int descriptor, const struct stat *facts) {
  sim_chunk *chunk;
  if (tarni_sim_chunk_make(device, (uint64_t)facts->st_size, true, &chunk) != TARN_OK) {
    return NULL;
  }
  chunk->file = tarni_sim_store_strikes() ? -1 : dup(descriptor);
  if (chunk->file < 0) {
    chunk_destroy(device, chunk);
    return NULL;
  }
  chunk->owns_file = true;
  chunk->inode = facts->st_ino;
  chunk_share_shadow(chunk);
  return chunk_register(device, chunk) ? chunk : NULL;
}

/* A file of the kind that export makes, which can be written to. All of them are in one file
 * system, so that their inodes tell them apart. */
static bool is_exported(const sim_device *device, int descriptor, struct stat *facts) {
  struct stat own;
  return fstat(descriptor, facts) == 0 && fstat(device->file, &own) == 0 &&
         facts->st_dev == own.st_dev && S_ISREG(facts->st_mode) && facts->st_size > 0 &&
         (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDWR &&
         tarni_is_aligned((uint64_t)facts->st_size, device->config.granularity_bytes);
}

tarn_status tarni_sim_import(tarni_port *port, int descriptor, tarni_chunk *id) {
  const char *entry = "cuMemImportFromShareableHandle";
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_IMPORT, 0));
  struct stat facts;
  if (!is_exported(device, descriptor, &facts)) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, entry,
                                                  "a descriptor that is no exported chunk was "
                                                  "imported",
                                                  (uint64_t)descriptor));
  }
  sim_chunk *chunk = chunk_by_inode(device, facts.st_ino);
  if (chunk != NULL) {
    chunk->n_handles++;
  } else {
    chunk = chunk_adopt(device, descriptor, &facts);
  }
  if (chunk == NULL) {
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, entry));
  }
  *id = chunk->id;
  return tarni_sim_end(device, TARN_OK);
}

/* ---- The end ---- */

/* What others hold of the device's memory is there as long as they do, but in no account. */
static void payer_forget(const sim_device *device) {
  for (const sim_device *other = tarni_sim_world.devices; other != NULL; other = other->next) {
    for (uint32_t i = 0; i < other->chunks.n; i++) {
      sim_shadow *shadow = ((const sim_chunk *)other->chunks.items[i])->shadow;
      shadow->payer = shadow->payer != device ? shadow->payer : NULL;
    }
  }
}

void tarni_sim_chunks_close(sim_device *device) {
  while (device->chunks.n != 0) {
    sim_chunk *chunk = device->chunks.items[--device->chunks.n];
    if (device->sticky_code == 0) {
      tarn_sim_finding finding = {.kind = TARN_SIM_LEAK, .bytes = chunk->size};
      tarni_sim_oracle_find_memory(device, &finding, chunk->shadow, "a chunk");
    }
    chunk_destroy(device, chunk);
  }
  payer_forget(device);
  free(device->chunks.items);
}
