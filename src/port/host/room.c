/* SPDX-License-Identifier: MIT
 *
 * How much memory of the operating system this process can have: what the machine, the control
 * groups that it is in, and a node tell. Reads their files each time, owns nothing, takes no lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bits.h"
#include "port/host/host.h"

enum {
  ROOM_LEFT = 32 << 20, /* at least so much stays free, or this part of what is asked for */
  ROOM_LEFT_SHARE = 64,
  ROOM_MAPPING = 23 << 10,  /* bytes that the driver keeps for a mapping, */
  ROOM_MAPPINGS_SHARE = 32, /* and the part of all there is that these may come to */
  PATH_BYTES = 512,
};

const char *tarni_host_room_root = "";

static FILE *file_open(const char *path) {
  char whole[2 * PATH_BYTES];
  const int length = snprintf(whole, sizeof(whole), "%s%s", tarni_host_room_root, path);
  return length > 0 && length < (int)sizeof(whole) ? fopen(whole, "re") : NULL;
}

/* The number behind `key` in a file, behind its very beginning where key is "". UINT64_MAX: there
 * is none, or no limit ("max"). */
static uint64_t number_in(const char *path, const char *key) {
  char line[128];
  uint64_t number = UINT64_MAX;
  FILE *file = file_open(path);
  if (file == NULL) {
    return number;
  }
  const size_t length = strlen(key);
  while (number == UINT64_MAX && fgets(line, sizeof(line), file) != NULL) {
    char *end = line;
    if (strncmp(line, key, length) == 0) {
      const uint64_t found = strtoull(line + length, &end, 10);
      number = end != line + length && end != line ? found : number;
    }
  }
  (void)fclose(file);
  return number;
}

/* What a control group may have and has, by either generation of them: files of its folder. */
typedef struct group_kind {
  const char *mount;      /* where the folders of all groups are */
  const char *controller; /* in /proc/self/cgroup, in the list before the group of the process */
  const char *limit;
  const char *slow; /* a second limit, above which the group is slowed down; NULL: there is none */
  const char *usage;
  const char *files, *shared, *kept; /* in memory.stat: what is kept of files; what of that is
                                        memory; what else can be given up */
} group_kind;

static const group_kind group_kinds[] = {
    {"/sys/fs/cgroup", "", "memory.max", "memory.high", "memory.current", "file ", "shmem ",
     "slab_reclaimable "},
    {"/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", NULL, "memory.usage_in_bytes",
     "total_cache ", "total_shmem ", "total_slab_reclaimable "},
};
enum { N_GROUP_KINDS = sizeof(group_kinds) / sizeof(group_kinds[0]) };

static uint64_t group_number(const group_kind *kind, const char *group, const char *name,
                             const char *key) {
  char path[PATH_BYTES];
  const int length = snprintf(path, sizeof(path), "%s%s/%s", kind->mount, group, name);
  return length > 0 && length < PATH_BYTES ? number_in(path, key) : UINT64_MAX;
}

/* Where the group begins in a line "5:memory,hugetlb:/a/b"; NULL: it is not this controller's. */
static const char *line_group(const char *line, const char *controller) {
  const char *before = strchr(line, ':');
  const char *list = before != NULL ? before + 1 : "";
  const char *end = strchr(list, ':');
  for (const char *item = list; end != NULL && item <= end;) {
    const size_t length = strcspn(item, ",:");
    if (length == strlen(controller) && strncmp(item, controller, length) == 0) {
      return end + 1;
    }
    item += length + 1;
  }
  return NULL;
}

/* The group of this process: "/a/b", or "" for the one at the top and where it cannot be told. */
static void group_find(const group_kind *kind, char *group) {
  char line[PATH_BYTES];
  group[0] = '\0';
  FILE *file = file_open("/proc/self/cgroup");
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    const char *path = line_group(line, kind->controller);
    if (path != NULL && path[0] == '/' && path[1] != '\n') {
      (void)snprintf(group, PATH_BYTES, "%.*s", (int)strcspn(path, "\n"), path);
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
}

/* The group above; false: there is none. */
static bool group_leave(char *group) {
  char *slash = strrchr(group, '/');
  if (slash == NULL) {
    return false;
  }
  *slash = '\0';
  return true;
}

static uint64_t group_limit(const group_kind *kind, const char *group) {
  const uint64_t limit = group_number(kind, group, kind->limit, "");
  return kind->slow == NULL ? limit : tarni_min(limit, group_number(kind, group, kind->slow, ""));
}

/* The system gives up what it keeps of files and names when memory is asked for, but not what is
 * shared. */
static uint64_t group_free(const group_kind *kind, const char *group) {
  const uint64_t limit = group_limit(kind, group);
  const uint64_t usage = group_number(kind, group, kind->usage, "");
  const uint64_t files = group_number(kind, group, "memory.stat", kind->files);
  const uint64_t shared = group_number(kind, group, "memory.stat", kind->shared);
  const uint64_t kept = group_number(kind, group, "memory.stat", kind->kept);
  if (limit == UINT64_MAX || usage == UINT64_MAX) {
    return UINT64_MAX;
  }
  const uint64_t of_files = files != UINT64_MAX && shared <= files ? files - shared : 0;
  const uint64_t all_kept = tarni_min(of_files + (kept != UINT64_MAX ? kept : 0), usage);
  const uint64_t used = usage - all_kept;
  return limit > used ? limit - used : 0;
}

/* The least of all groups that the process is in. */
static uint64_t groups_least(uint64_t (*ask)(const group_kind *kind, const char *group)) {
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; i < N_GROUP_KINDS; i++) {
    char group[PATH_BYTES];
    group_find(&group_kinds[i], group);
    do {
      least = tarni_min(least, ask(&group_kinds[i], group));
    } while (group_leave(group));
  }
  return least;
}

uint64_t tarni_host_room_total(void) {
  const long n_pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  const uint64_t total = n_pages > 0 && page > 0 ? (uint64_t)n_pages * (uint64_t)page : 1u << 30;
  return tarni_min(total, groups_least(group_limit));
}

/* As measured (docs/results/h200-chunk.md). The simulated GPU's take hardly any. */
uint64_t tarni_port_host_mappings(const tarni_port *device) {
  return device->device.is_simulated ? UINT64_MAX
                                     : tarni_host_room_total() / ROOM_MAPPINGS_SHARE / ROOM_MAPPING;
}

uint64_t tarni_host_room_free(void) {
  const uint64_t kib = number_in("/proc/meminfo", "MemAvailable:");
  const uint64_t free_bytes = kib < UINT64_MAX / 1024 ? kib * 1024 : tarni_host_room_total();
  return tarni_min(free_bytes, groups_least(group_free));
}

/* Of a node; UINT64_MAX: it does not tell. */
static uint64_t node_free(uint32_t node) {
  static const char *const keys[] = {"MemFree:", "Active(file):", "Inactive(file):"};
  char path[PATH_BYTES], key[64];
  uint64_t sum = 0;
  (void)snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/meminfo", node);
  for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
    (void)snprintf(key, sizeof(key), "Node %u %s", node, keys[i]);
    const uint64_t kib = number_in(path, key);
    if (kib >= UINT64_MAX / 4096) {
      return UINT64_MAX;
    }
    sum += kib * 1024;
  }
  return sum;
}

bool tarni_host_room_has(uint64_t size, const tarni_host_config *config) {
  uint64_t needed, there = tarni_host_room_free();
  if (config->has_node) {
    there = tarni_min(there, node_free(config->node));
  }
  return tarni_add(size, tarni_max(ROOM_LEFT, size / ROOM_LEFT_SHARE), &needed) && needed <= there;
}
