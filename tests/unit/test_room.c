/* SPDX-License-Identifier: MIT
 *
 * How much memory the process can have, as the files of control groups tell it: of either
 * generation, of the process's group and of those above it. The files are the test's own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "port/host/host.h"
#include "support/test.h"

static const uint64_t mib = 1 << 20;
static char root[64];

/* Writes a file below the root, and the folders that it needs. */
static void put(const char *path, const char *text) {
  char whole[256];
  (void)snprintf(whole, sizeof(whole), "%s%s", root, path);
  for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
    *slash = '\0';
    (void)mkdir(whole, 0700);
    *slash = '/';
  }
  FILE *file = fopen(whole, "we");
  REQUIRE(file != NULL);
  CHECK(fputs(text, file) >= 0);
  CHECK(fclose(file) == 0);
}

static void put_number(const char *path, uint64_t number) {
  char text[32];
  (void)snprintf(text, sizeof(text), "%llu\n", (unsigned long long)number);
  put(path, text);
}

static void take_down(void) {
  char command[128];
  (void)snprintf(command, sizeof(command), "rm -r '%s'", root);
  CHECK(system(command) == 0); /* NOLINT(cert-env33-c,concurrency-mt-unsafe): the test's own */
  tarni_host_room_root = "";
}

static bool set_up(const char *groups) {
  (void)snprintf(root, sizeof(root), "/tmp/tarn-room-XXXXXX");
  if (!CHECK(mkdtemp(root) != NULL)) {
    return false;
  }
  put("/proc/self/cgroup", groups);
  put("/proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    8000000 kB\n");
  tarni_host_room_root = root;
  return true;
}

/* The least of both limits of every group; "max" is none. */
static void second_generation(void) {
  REQUIRE(set_up("0::/a/b\n"));
  const uint64_t machine = tarni_host_room_total();
  CHECK(machine > 100 * mib);
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/memory.high", "max\n");
  CHECK_EQ(tarni_host_room_total(), machine);
  put_number("/sys/fs/cgroup/a/b/memory.max", 100 * mib);
  CHECK_EQ(tarni_host_room_total(), 100 * mib);
  put_number("/sys/fs/cgroup/a/b/memory.high", 80 * mib);
  CHECK_EQ(tarni_host_room_total(), 80 * mib);
  put_number("/sys/fs/cgroup/a/memory.high", 60 * mib);
  CHECK_EQ(tarni_host_room_total(), 60 * mib);
  put_number("/sys/fs/cgroup/a/memory.max", 50 * mib);
  CHECK_EQ(tarni_host_room_total(), 50 * mib);
  put_number("/sys/fs/cgroup/a/b/memory.current", 70 * mib);
  put("/sys/fs/cgroup/a/b/memory.stat", "anon 1\nfile 2097152\nshmem 1048576\n");
  CHECK_EQ(tarni_host_room_free(), 11 * mib);
  put_number("/sys/fs/cgroup/a/memory.current", 45 * mib);
  CHECK_EQ(tarni_host_room_free(), 5 * mib);
  take_down();
}

/* The controller stands in a list, anywhere; another whose name is a part of it is another. */
static void first_generation(void) {
  static const char *const groups[] = {
      "5:memory:/x\n",
      "5:memory,hugetlb:/x\n",
      "9:cpu:/y\n12:cpuset,memory,hugetlb:/x\n1:name=systemd:/y\n0::/y\n",
      "3:hugetlb,memory:/x\n",
  };
  for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
    REQUIRE(set_up(groups[i]));
    put_number("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", 90 * mib);
    put_number("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", 20 * mib);
    put_number("/sys/fs/cgroup/memory/y/memory.limit_in_bytes", mib);
    CHECK_EQ(tarni_host_room_total(), 90 * mib);
    CHECK_EQ(tarni_host_room_free(), 70 * mib);
    take_down();
  }
  REQUIRE(set_up("5:memory2,hugetlb:/x\n4:cpu:/a:memory:/x\n"));
  put_number("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", mib);
  CHECK(tarni_host_room_total() > mib);
  take_down();
}

/* Lines that are none. */
static void no_groups(void) {
  static const char *const groups[] = {"", "\n", "5\n", "5:memory\n", ":\n", "::\n", "5:memory:\n"};
  for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
    REQUIRE(set_up(groups[i]));
    CHECK(tarni_host_room_total() > mib);
    CHECK_EQ(tarni_host_room_free(), (uint64_t)8000000 * 1024);
    take_down();
  }
}

static const test_case cases[] = {
    {"groups of the second generation", second_generation},
    {"groups of the first generation", first_generation},
    {"no groups", no_groups},
};

TEST_MAIN(cases)
