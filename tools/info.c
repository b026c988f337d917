/* SPDX-License-Identifier: MIT
 *
 * tarn info: the devices and what they can do, as a table or as JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tarn/tarn.h"
#include "tool.h"

/* What a device can have, as the table and JSON name it. */
typedef struct info_feature {
  const char *name;
  size_t offset; /* of the bool in tarn_device_info */
} info_feature;

static const info_feature features[] = {
    {"vmm", offsetof(tarn_device_info, has_vmm)},
    {"pool", offsetof(tarn_device_info, has_pool)},
    {"export", offsetof(tarn_device_info, has_export)},
    {"host_register", offsetof(tarn_device_info, has_host_register)},
    {"batch_copy", offsetof(tarn_device_info, has_batch_copy)},
    {"integrated", offsetof(tarn_device_info, is_integrated)},
    {"simulated", offsetof(tarn_device_info, is_simulated)},
};
enum { N_FEATURES = sizeof(features) / sizeof(features[0]) };

static bool has_feature(const tarn_device_info *info, const info_feature *feature) {
  bool has_it;
  memcpy(&has_it, (const char *)info + feature->offset, sizeof(has_it));
  return has_it;
}

/* A list of the length that there is; NULL, and the error told, when it cannot be had. */
static tarn_device_info *list_devices(size_t *count) {
  if (tarn_device_list(NULL, 0, count) != TARN_OK) {
    (void)tool_fail();
    return NULL;
  }
  tarn_device_info *infos = calloc(*count + 1, sizeof(*infos));
  if (infos == NULL) {
    (void)fprintf(stderr, "tarn: out of host memory\n");
    return NULL;
  }
  infos[0].size = sizeof(*infos);
  const size_t capacity = *count + 1;
  if (tarn_device_list(infos, capacity, count) != TARN_OK) {
    free(infos);
    (void)tool_fail();
    return NULL;
  }
  *count = *count < capacity ? *count : capacity;
  return infos;
}

/* What kept GPUs out of the list; NULL when nothing did, or there is no driver at all. */
static const char *driver_trouble(void) {
  const tarn_status status = tarn_last_error(NULL);
  return status != TARN_OK && status != TARN_NO_DRIVER ? tarn_last_message() : NULL;
}

static void print_version_text(int32_t driver_version, char buffer[TOOL_TEXT]) {
  if (driver_version == 0) {
    (void)snprintf(buffer, TOOL_TEXT, "-");
  } else {
    (void)snprintf(buffer, TOOL_TEXT, "%d.%d", driver_version / 1000, driver_version % 1000 / 10);
  }
}

static void print_table(const tarn_device_info *infos, size_t count) {
  printf("%-8s %-32s %11s %11s %8s %5s %6s  %s\n", "DEVICE", "MODEL", "MEMORY", "FREE", "GRANULE",
         "BITS", "DRIVER", "FEATURES");
  for (size_t i = 0; i < count; i++) {
    const tarn_device_info *info = &infos[i];
    char total[TOOL_TEXT], free_text[TOOL_TEXT], granule[TOOL_TEXT], driver[TOOL_TEXT];
    print_version_text(info->driver_version, driver);
    printf("%-8s %-32s %11s %11s %8s %5u %6s ", info->name, info->model,
           tool_bytes(info->total_bytes, total),
           info->free_bytes != 0 ? tool_bytes(info->free_bytes, free_text) : "-",
           info->granularity_bytes != 0 ? tool_bytes(info->granularity_bytes, granule) : "-",
           (unsigned)info->address_bits, driver);
    for (size_t f = 0; f < N_FEATURES; f++) {
      printf("%s%s", has_feature(info, &features[f]) ? " " : "",
             has_feature(info, &features[f]) ? features[f].name : "");
    }
    printf("\n");
  }
}

static void print_json(const tarn_device_info *infos, size_t count) {
  printf("{");
  tool_json_member("version", true);
  tool_json_text(tarn_version());
  tool_json_member("devices", false);
  printf("[");
  for (size_t i = 0; i < count; i++) {
    const tarn_device_info *info = &infos[i];
    printf("%s\n  {", i > 0 ? "," : "");
    tool_json_member("name", true);
    tool_json_text(info->name);
    tool_json_string("model", info->model);
    tool_json_number("total_bytes", info->total_bytes);
    tool_json_number("free_bytes", info->free_bytes);
    tool_json_number("granularity_bytes", info->granularity_bytes);
    tool_json_number("address_bits", info->address_bits);
    tool_json_number("driver_version", (uint64_t)info->driver_version);
    for (size_t f = 0; f < N_FEATURES; f++) {
      tool_json_switch(features[f].name, has_feature(info, &features[f]));
    }
    printf("}");
  }
  printf("\n]}\n");
}

int tool_info(const tool_command *command, int argc, char **argv) {
  bool is_json = false;
  const tool_argument arguments[] = {{"--json", &is_json, NULL}};
  const int result = tool_parse(command, arguments, 1, argc, argv);
  if (result >= 0) {
    return result;
  }
  size_t count = 0;
  tarn_device_info *infos = list_devices(&count);
  if (infos == NULL) {
    return TOOL_FAILED;
  }
  if (driver_trouble() != NULL) {
    (void)fprintf(stderr, "tarn: a GPU may be missing here: %s\n", driver_trouble());
  }
  if (is_json) {
    print_json(infos, count);
  } else {
    print_table(infos, count);
  }
  free(infos);
  return TOOL_OK;
}
