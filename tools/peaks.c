/* SPDX-License-Identifier: MIT
 *
 * Reads peaks.csv. A line that is not as it should be is not this trace's, so it is passed over. */
#include <stdio.h>
#include <stdlib.h>
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

/* Reads "NAME,N,N,N" for this name. */
static bool read_line(const char *line, const char *name, peaks *found) {
  uint64_t *const numbers[] = {&found->live_bytes, &found->native_bytes, &found->expandable_bytes};
  const size_t length = strlen(name);
  const char *at = line + length;
  if (strncmp(line, name, length) != 0) {
    return false;
  }
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    char *end;
    if (*at != ',') {
      return false;
    }
    *numbers[i] = strtoull(at + 1, &end, 10);
    at = end;
  }
  return *at == '\n' || *at == '\0';
}

bool peaks_find(const char *path, peaks *found) {
  char name[PEAKS_NAME], file_name[4096], line[2 * PEAKS_NAME];
  const int folder = (int)(base_of(path) - path);
  (void)snprintf(file_name, sizeof(file_name), "%.*speaks.csv", folder, path);
  FILE *file = fopen(file_name, "r");
  bool is_found = false;
  *found = (peaks){0};
  (void)peaks_name(path, name);
  while (file != NULL && !is_found && fgets(line, sizeof(line), file) != NULL) {
    is_found = read_line(line, name, found);
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return is_found;
}
