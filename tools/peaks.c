/* SPDX-License-Identifier: MIT
 *
 * Reads peaks.csv. A line that is not as it should be is not this trace's, so it is passed over. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "peaks.h"

static const char *base_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

static void cut_ending(char *name, const char *ending) {
  const size_t length = strlen(name), n = strlen(ending);
  if (length > n && strcmp(name + length - n, ending) == 0) {
    name[length - n] = '\0';
  }
}

char *peaks_name(const char *path, char name[PEAKS_NAME]) {
  (void)snprintf(name, PEAKS_NAME, "%s", base_of(path));
  cut_ending(name, ".gz");
  cut_ending(name, ".trace");
  return name;
}

bool peaks_find(const char *path, peaks *found) {
  char name[PEAKS_NAME], file_name[4096], line[256], read_name[PEAKS_NAME];
  const int folder = (int)(base_of(path) - path);
  (void)snprintf(file_name, sizeof(file_name), "%.*speaks.csv", folder, path);
  FILE *file = fopen(file_name, "r");
  bool is_found = false;
  (void)peaks_name(path, name);
  while (file != NULL && !is_found && fgets(line, sizeof(line), file) != NULL) {
    peaks read = {0};
    is_found = sscanf(line, "%63[^,],%" SCNu64 ",%" SCNu64 ",%" SCNu64, read_name, &read.live_bytes,
                      &read.native_bytes, &read.expandable_bytes) == 4 &&
               strcmp(read_name, name) == 0;
    *found = is_found ? read : *found;
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return is_found;
}
