/* SPDX-License-Identifier: MIT
 *
 * tarn replay --stats: what one pass did to its heap, and how the heap looked at the peak of live
 * bytes. */
#include <stdio.h>

#include "replay.h"
#include "tool.h"

/* ---- Text ----------------------------------------------------------------------------------- */

static void print_scope(const replay_result *result) {
  const tarn_stats_scope_result *scope = &result->scope;
  char allocated[TOOL_TEXT], live[TOOL_TEXT], used[TOOL_TEXT], time[TOOL_TEXT];
  printf("    pass 1: %llu allocations of %s, %llu missed their cache; most live at once %s, in\n"
         "    blocks %s; %llu chunks mapped again, %llu waits between streams, driver %s\n",
         (unsigned long long)scope->allocations, tool_bytes(scope->allocated_bytes, allocated),
         (unsigned long long)scope->misses, tool_bytes(scope->live_peak_bytes, live),
         tool_bytes(scope->used_peak_bytes, used), (unsigned long long)scope->moved_chunks,
         (unsigned long long)scope->waits, tool_duration(scope->driver_ns, time));
}

static void print_peak(const replay_result *result) {
  const tarn_heap_stats *stats = &result->peak_stats;
  char held[TOOL_TEXT], cached[TOOL_TEXT], pending[TOOL_TEXT], unused[TOOL_TEXT],
      largest[TOOL_TEXT];
  printf("    at the peak: held %s, cached %s, pending %s, free %s, largest piece %s, "
         "fragmentation %.2f\n",
         tool_bytes(stats->reserved_bytes, held), tool_bytes(stats->cached_bytes, cached),
         tool_bytes(stats->pending_bytes, pending), tool_bytes(stats->free_bytes, unused),
         tool_bytes(stats->largest_free_bytes, largest), stats->fragmentation);
}

static void print_histogram(const tarn_heap_histogram *histogram) {
  printf("    %10s %10s %10s %10s %12s\n", "BLOCK", "LIVE", "BYTES", "CACHED", "ALLOCATIONS");
  for (uint64_t i = 0; i < histogram->n_rows; i++) {
    const tarn_histogram_row *row = &histogram->rows[i];
    char block[TOOL_TEXT], live[TOOL_TEXT];
    printf("    %10s %10llu %10s %10llu %12llu\n", tool_bytes(row->block_bytes, block),
           (unsigned long long)row->live_blocks, tool_bytes(row->live_bytes, live),
           (unsigned long long)row->cached_blocks, (unsigned long long)row->allocations);
  }
}

static void print_calls(const replay_calls *calls) {
  printf("    %-18s %10s %12s\n", "DRIVER CALL", "CALLS", "TIME");
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    char time[TOOL_TEXT];
    if (calls->calls[i] != 0) {
      printf("    %-18s %10llu %12s\n", tarn_call_name((tarn_call)i),
             (unsigned long long)calls->calls[i], tool_duration(calls->nanoseconds[i], time));
    }
  }
}

void replay_stats_print(const replay_result *result) {
  print_scope(result);
  print_peak(result);
  print_histogram(&result->peak_histogram);
  print_calls(&result->first);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void print_row_json(const tarn_histogram_row *row) {
  printf("{");
  tool_json_member("block_bytes", true);
  printf("%llu", (unsigned long long)row->block_bytes);
  tool_json_number("live_blocks", row->live_blocks);
  tool_json_number("live_bytes", row->live_bytes);
  tool_json_number("cached_blocks", row->cached_blocks);
  tool_json_number("pending_blocks", row->pending_blocks);
  tool_json_number("allocations", row->allocations);
  printf("}");
}

void replay_stats_print_json(const replay_result *result) {
  const tarn_heap_histogram *histogram = &result->peak_histogram;
  tool_json_member("stats", false);
  printf("{");
  tool_json_member("allocations", true);
  printf("%llu", (unsigned long long)result->scope.allocations);
  tool_json_number("allocated_bytes", result->scope.allocated_bytes);
  tool_json_number("misses", result->scope.misses);
  tool_json_number("live_peak_bytes", result->scope.live_peak_bytes);
  tool_json_number("used_peak_bytes", result->scope.used_peak_bytes);
  tool_json_number("free_bytes", result->peak_stats.free_bytes);
  tool_json_number("largest_free_bytes", result->peak_stats.largest_free_bytes);
  tool_json_real("fragmentation", result->peak_stats.fragmentation, 4);
  tool_json_member("histogram", false);
  printf("[");
  for (uint64_t i = 0; i < histogram->n_rows; i++) {
    printf("%s", i != 0 ? ", " : "");
    print_row_json(&histogram->rows[i]);
  }
  printf("]}");
}
