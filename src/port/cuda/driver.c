/* SPDX-License-Identifier: MIT
 *
 * Loads libcuda at run time. Owns the one table of its entries and the finding of the one attempt
 * to load it; both are immutable after that attempt. Must not know devices, contexts or memory.
 *
 * The library is never unloaded: the driver keeps threads of its own.
 *
 * Locks: load_once. The fork mark is atomic, set in a child by the handler that fork itself runs.
 */
#include "port/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

typedef struct driver_entry {
  size_t offset; /* of the function pointer in tarni_cu_driver */
  tarni_cu_group group;
  int version;
  const char *name;
  const char *symbol;
} driver_entry;

static const driver_entry driver_entries[] = {
#define DRIVER_ENTRY(member, group, name, version, symbol, parameters)                             \
  {offsetof(tarni_cu_driver, member), TARNI_CU_GROUP_##group, version, #name, #symbol},
    TARNI_CU_ENTRIES(DRIVER_ENTRY)
#undef DRIVER_ENTRY
};

enum { DRIVER_ENTRY_COUNT = sizeof(driver_entries) / sizeof(driver_entries[0]) };

/* What the attempt to load found. immutable after load_once: */
typedef struct driver_finding {
  tarn_status status;
  tarni_cu_result code; /* of cuInit */
  char detail[160];     /* the loader's words, or the entry that is missing */
} driver_finding;

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static tarni_cu_driver loaded_driver;
static driver_finding finding;
static atomic_bool is_forked_child;

/* How entries are looked up: both pointers may be NULL, then symbols are all there is. */
typedef struct driver_lookup {
  void *library;
  tarni_cu_lookup_v12000 by_version;
  tarni_cu_lookup_v11030 by_version_old;
} driver_lookup;

/* dlsym gives data pointers; POSIX lets them hold functions, C only lets their bytes be copied. */
static void find_symbol(void *library, const char *symbol, void *function, size_t size) {
  void *address = dlsym(library, symbol);
  tarn_assert(size == sizeof(address));
  memcpy(function, &address, size);
}

static void *find_by_version(const driver_lookup *lookup, const driver_entry *entry) {
  void *address = NULL;
  const tarni_cu_word flags = TARNI_CU_LOOKUP_LEGACY_STREAM;
  if (lookup->by_version != NULL) {
    tarni_cu_lookup found = TARNI_CU_LOOKUP_FOUND;
    const tarni_cu_result code =
        lookup->by_version(entry->name, &address, entry->version, flags, &found);
    return code == TARNI_CU_SUCCESS && found == TARNI_CU_LOOKUP_FOUND ? address : NULL;
  }
  if (lookup->by_version_old != NULL) {
    const tarni_cu_result code =
        lookup->by_version_old(entry->name, &address, entry->version, flags);
    return code == TARNI_CU_SUCCESS ? address : NULL;
  }
  return NULL;
}

static bool resolve_entry(const driver_lookup *lookup, const driver_entry *entry,
                          tarni_cu_driver *driver) {
  void *address = find_by_version(lookup, entry);
  if (address == NULL) {
    address = dlsym(lookup->library, entry->symbol);
  }
  memcpy((unsigned char *)driver + entry->offset, &address, sizeof(address));
  return address != NULL;
}

/* An entry of a group is missing: remember the first of CORE, for the message. */
static void miss_entry(tarni_cu_driver *driver, tarni_cu_group group, const char *name) {
  if (group == TARNI_CU_GROUP_OPTIONAL) {
    return;
  }
  if (group == TARNI_CU_GROUP_CORE && driver->has[group]) {
    (void)snprintf(finding.detail, sizeof(finding.detail), "%s", name);
  }
  driver->has[group] = false;
}

static void resolve_entries(tarni_cu_driver *driver) {
  driver_lookup lookup = {.library = driver->library};
  find_symbol(lookup.library, "cuGetProcAddress_v2", &lookup.by_version, sizeof(lookup.by_version));
  find_symbol(lookup.library, "cuGetProcAddress", &lookup.by_version_old,
              sizeof(lookup.by_version_old));
  for (int i = 0; i < TARNI_CU_GROUP_COUNT; i++) {
    driver->has[i] = true;
  }
  for (int i = 0; i < DRIVER_ENTRY_COUNT; i++) {
    const driver_entry *entry = &driver_entries[i];
    if (!resolve_entry(&lookup, entry, driver)) {
      miss_entry(driver, entry->group, entry->name);
    }
  }
  if (driver->primary_release == NULL) {
    driver->primary_release = driver->primary_release_old;
  }
  if (driver->primary_release == NULL) {
    miss_entry(driver, TARNI_CU_GROUP_CORE, "cuDevicePrimaryCtxRelease");
  }
  if (driver->instantiate == NULL && driver->instantiate_old == NULL) {
    miss_entry(driver, TARNI_CU_GROUP_GRAPH, "cuGraphInstantiate");
  }
}

static void *open_library(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *why = dlerror();
    (void)snprintf(finding.detail, sizeof(finding.detail), "%s",
                   why != NULL ? why : "libcuda.so.1 cannot be opened");
    library = dlopen("libcuda.so", RTLD_NOW | RTLD_LOCAL);
  }
  return library;
}

static void mark_forked_child(void) {
  atomic_store_explicit(&is_forked_child, true, memory_order_relaxed);
}

static void load_driver(void) {
  tarni_cu_driver *driver = &loaded_driver;
  driver->library = open_library();
  if (driver->library == NULL) {
    finding.status = TARN_NO_DRIVER;
    return;
  }
  resolve_entries(driver);
  if (!driver->has[TARNI_CU_GROUP_CORE]) {
    finding.status = TARN_DRIVER_OLD;
    return;
  }
  /* Before cuInit: a fork may follow in another thread at any time. */
  (void)pthread_atfork(NULL, NULL, mark_forked_child);
  finding.code = driver->init(0);
  if (finding.code == TARNI_CU_SUCCESS) {
    finding.code = driver->driver_version(&driver->version);
  }
  finding.status = tarni_cuda_status(finding.code);
}

static tarn_status refuse_driver(const char *operation) {
  if (finding.code != TARNI_CU_SUCCESS) {
    const tarni_cuda_failure failure = {.operation = "cuInit", .code = finding.code};
    return tarni_cuda_fail(&failure);
  }
  if (finding.status == TARN_NO_DRIVER) {
    return tarni_fail(TARN_NO_DRIVER, operation, NULL,
                      "Install the NVIDIA driver, or put the folder of libcuda.so.1 into "
                      "LD_LIBRARY_PATH; the device \"sim\" needs neither.",
                      "the CUDA driver could not be loaded (%s)", finding.detail);
  }
  return tarni_fail(TARN_DRIVER_OLD, operation, NULL,
                    "Update the NVIDIA driver; tarn needs one of CUDA 7.0 or newer.",
                    "the CUDA driver has no entry %s", finding.detail);
}

tarn_status tarni_cu_driver_status(void) {
  (void)pthread_once(&load_once, load_driver);
  return finding.status == TARN_OK && tarni_cu_forked() ? TARN_FORKED : finding.status;
}

tarn_status tarni_cu_driver_get(const char *operation, const tarni_cu_driver **driver) {
  *driver = NULL;
  const tarn_status status = tarni_cu_driver_status();
  if (status == TARN_FORKED) {
    return tarni_cuda_fail_forked(operation);
  }
  if (status != TARN_OK) {
    return refuse_driver(operation);
  }
  *driver = &loaded_driver;
  return TARN_OK;
}

bool tarni_cu_forked(void) {
  return atomic_load_explicit(&is_forked_child, memory_order_relaxed);
}

const char *tarni_cu_code_name(tarni_cu_result code) {
  const char *name = NULL;
  if (loaded_driver.error_name == NULL ||
      loaded_driver.error_name(code, &name) != TARNI_CU_SUCCESS || name == NULL) {
    return "unknown";
  }
  return name;
}

int tarni_cu_group_version(tarni_cu_group group) {
  static const int versions[TARNI_CU_GROUP_COUNT] = {
#define GROUP_VERSION(name, version, fallback) version,
      TARNI_CU_GROUPS(GROUP_VERSION)
#undef GROUP_VERSION
  };
  tarn_assert((unsigned)group < TARNI_CU_GROUP_COUNT);
  return versions[group];
}

const char *tarni_cu_group_fallback(tarni_cu_group group) {
  static const char *const fallbacks[TARNI_CU_GROUP_COUNT] = {
#define GROUP_FALLBACK(name, version, fallback) fallback,
      TARNI_CU_GROUPS(GROUP_FALLBACK)
#undef GROUP_FALLBACK
  };
  tarn_assert((unsigned)group < TARNI_CU_GROUP_COUNT);
  return fallbacks[group];
}
