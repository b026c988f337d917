/* SPDX-License-Identifier: MIT
 *
 * tarn probe: shows a device at work and prints what its driver calls cost. */
#include <stdio.h>

#include "tarn/tarn.h"
#include "tool.h"

static const char *const kind_names[TARN_PROBE_COUNT] = {
#define KIND_NAME(name, text, meaning) [TARN_PROBE_##name] = text,
    TARN_PROBE_MAP(KIND_NAME)
#undef KIND_NAME
};

static const char *const kind_meanings[TARN_PROBE_COUNT] = {
#define KIND_MEANING(name, text, meaning) [TARN_PROBE_##name] = meaning,
    TARN_PROBE_MAP(KIND_MEANING)
#undef KIND_MEANING
};

static const char *const call_entries[TARN_CALL_COUNT] = {
#define CALL_ENTRY(name, text, entry) [TARN_CALL_##name] = entry,
    TARN_CALL_MAP(CALL_ENTRY)
#undef CALL_ENTRY
};

typedef struct verdict {
  const char *word;
  const char *colour;
} verdict;

static verdict verdict_of(const tarn_probe_result *result) {
  static const verdict good = {"ok", "\033[32m"}, bad = {"FAILED", "\033[31m"},
                       absent = {"absent", "\033[33m"};
  if (!result->is_tried) {
    return absent;
  }
  return result->is_verified ? good : bad;
}

static void print_results(const tarn_probe_report *report) {
  const bool has_colour = tool_has_colour();
  for (int i = 0; i < TARN_PROBE_COUNT; i++) {
    const tarn_probe_result *result = &report->results[i];
    const verdict found = verdict_of(result);
    char compared[TOOL_TEXT];
    printf("  %s%-6s%s  %-10s  %s", has_colour ? found.colour : "", found.word,
           has_colour ? "\033[0m" : "", kind_names[i], kind_meanings[i]);
    if (result->is_verified) {
      printf(" (%s compared)\n", tool_bytes(result->compared_bytes, compared));
    } else {
      printf("\n          %s\n", result->message);
    }
  }
}

static void print_prices(const tarn_probe_report *report, bool is_simulated) {
  printf("\nWhat a driver call costs here%s:\n  %-18s %-32s %5s  %9s\n",
         is_simulated ? ", on the virtual clock" : "", "CALL", "ENTRY", "CALLS", "MEDIAN");
  for (int call = 0; call < TARN_CALL_COUNT; call++) {
    const tarn_probe_price *price = &report->prices[call];
    char median[TOOL_TEXT];
    if (price->calls > 0) {
      printf("  %-18s %-32s %5llu  %9s\n", tarn_call_name((tarn_call)call), call_entries[call],
             (unsigned long long)price->calls, tool_duration(price->median_ns, median));
    }
  }
}

static void print_probe(const tarn_device_info *info, const tarn_probe_report *report,
                        tarn_status status) {
  char total[TOOL_TEXT], free_text[TOOL_TEXT];
  printf("%s: %s, %s, %s free\n", info->name, info->model, tool_bytes(info->total_bytes, total),
         tool_bytes(info->free_bytes, free_text));
  print_results(report);
  print_prices(report, info->is_simulated);
  printf("\n%s %s.\n", info->name, status == TARN_OK ? "works" : "does NOT work as it should");
}

static void print_probe_json(const tarn_device_info *info, const tarn_probe_report *report) {
  printf("{");
  tool_json_member("version", true);
  tool_json_text(tarn_version());
  tool_json_string("device", info->name);
  tool_json_string("model", info->model);
  tool_json_switch("simulated", info->is_simulated);
  tool_json_member("results", false);
  printf("[");
  for (int i = 0; i < TARN_PROBE_COUNT; i++) {
    const tarn_probe_result *result = &report->results[i];
    printf("%s\n  {", i > 0 ? "," : "");
    tool_json_member("name", true);
    tool_json_text(kind_names[i]);
    tool_json_switch("tried", result->is_tried);
    tool_json_switch("verified", result->is_verified);
    tool_json_string("status", tarn_status_name(result->status));
    tool_json_number("compared_bytes", result->compared_bytes);
    tool_json_string("message", result->message);
    printf("}");
  }
  printf("\n]");
  tool_json_member("calls", false);
  printf("[");
  for (int call = 0; call < TARN_CALL_COUNT; call++) {
    printf("%s\n  {", call > 0 ? "," : "");
    tool_json_member("name", true);
    tool_json_text(tarn_call_name((tarn_call)call));
    tool_json_string("entry", call_entries[call]);
    tool_json_number("calls", report->prices[call].calls);
    tool_json_number("median_ns", report->prices[call].median_ns);
    printf("}");
  }
  printf("\n]}\n");
}

static int probe_device(tarn_device *device, bool is_json) {
  tarn_device_info info = {.size = sizeof(info)};
  static tarn_probe_report report = {.size = sizeof(report)};
  if (tarn_device_get_info(device, &info) != TARN_OK) {
    return tool_fail();
  }
  const tarn_status status = tarn_device_probe(device, &report);
  if (is_json) {
    print_probe_json(&info, &report);
  } else {
    print_probe(&info, &report, status);
  }
  return status == TARN_OK ? TOOL_OK : tool_fail();
}

int tool_probe(const tool_command *command, int argc, char **argv) {
  bool is_json = false, has_device = false;
  const char *name = NULL;
  const tool_argument arguments[] = {{"--json", &is_json, NULL}, {"--device", &has_device, &name}};
  const int result = tool_parse(command, arguments, 2, argc, argv);
  if (result >= 0) {
    return result;
  }
  tarn_device *device;
  if (tarn_device_open(name, &device) != TARN_OK) {
    return tool_fail();
  }
  const int exit_status = probe_device(device, is_json);
  tarn_device_close(device);
  return exit_status;
}
