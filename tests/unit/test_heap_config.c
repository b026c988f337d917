/* SPDX-License-Identifier: MIT
 *
 * What a heap is made of: its config, the environment and the presets, in this order. The library
 * reads its environment once, so every case runs in a process of its own. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "support/fake_driver.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20 };

static const tarn_heap_config nothing_said = {.size = sizeof(nothing_said)};

static tarni_settings settings_of(const tarn_heap_config *config) {
  tarni_settings settings = {0};
  CHECK_OK(tarni_settings_resolve(config, &settings));
  return settings;
}

static void check_power_buckets(const tarni_settings *settings) {
  CHECK_EQ(settings->backing, TARN_BACKING_PLAIN);
  CHECK_EQ(settings->rounding, TARN_ROUNDING_POWER_OF_TWO);
  CHECK_EQ(settings->cached_limit, 256 * MIB);
  CHECK(settings->has_slots_by_limit);
  CHECK_EQ(settings->live_limit, UINT64_MAX);
}

static void check_exact_pool(const tarni_settings *settings) {
  CHECK_EQ(settings->backing, TARN_BACKING_POOL);
  CHECK_EQ(settings->rounding, TARN_ROUNDING_EXACT);
  CHECK_EQ(settings->cached_limit, 1024ull * MIB);
  CHECK_EQ(settings->cached_slots, 64);
  CHECK(!settings->has_slots_by_limit);
  CHECK_EQ(settings->pool_threshold, 512 * MIB);
}

/* ---- Config ---- */

static void presets_body(void) {
  tarn_heap_config config = nothing_said;
  tarni_settings settings = settings_of(&config);
  CHECK_EQ(settings.backing, TARN_BACKING_VMM);
  CHECK_EQ(settings.rounding, TARN_ROUNDING_CLASSES);
  CHECK(!tarni_settings_have_buckets(&settings));
  config.preset = TARN_PRESET_POWER_BUCKETS;
  settings = settings_of(&config);
  check_power_buckets(&settings);
  config.preset = TARN_PRESET_EXACT_POOL;
  settings = settings_of(&config);
  check_exact_pool(&settings);
  config.cached_limit_bytes = 7 * MIB; /* a preset is only what is not said */
  config.cached_blocks_per_size = 3;
  config.pool_threshold_bytes = MIB;
  config.live_limit_bytes = 9 * MIB;
  config.rounding = TARN_ROUNDING_POWER_OF_TWO;
  settings = settings_of(&config);
  CHECK_EQ(settings.backing, TARN_BACKING_POOL);
  CHECK_EQ(settings.rounding, TARN_ROUNDING_POWER_OF_TWO);
  CHECK_EQ(settings.cached_limit, 7 * MIB);
  CHECK_EQ(settings.cached_slots, 3);
  CHECK_EQ(settings.pool_threshold, MIB);
  CHECK_EQ(settings.live_limit, 9 * MIB);
}

static void refuse(const tarn_heap_config *config, tarn_status want, const char *part) {
  tarn_heap *heap = (tarn_heap *)(uintptr_t)1;
  CHECK_STATUS(tarn_heap_create(config, &heap), want);
  CHECK(heap == NULL);
  CHECK_HAS(tarn_last_message(), part);
}

static void wrong_configs_body(void) {
  tarn_heap_config config = {.size = sizeof(config), .device = "sim:64M"};
  config.backing = (tarn_backing)9;
  refuse(&config, TARN_INVALID, "backing is 9");
  config.backing = TARN_BACKING_DEFAULT;
  config.rounding = (tarn_rounding)-1;
  refuse(&config, TARN_INVALID, "rounding is -1");
  config.rounding = TARN_ROUNDING_DEFAULT;
  config.preset = (tarn_preset)4;
  refuse(&config, TARN_INVALID, "preset is 4");
  config.preset = TARN_PRESET_DEFAULT;
  config.cached_limit_bytes = 1;
  refuse(&config, TARN_UNSUPPORTED, "vmm and rounding classes");
  config.cached_limit_bytes = 0;
  config.live_limit_bytes = 1;
  refuse(&config, TARN_UNSUPPORTED, "vmm and rounding classes");
  config.live_limit_bytes = 0;
  config.pool_threshold_bytes = 77;
  refuse(&config, TARN_UNSUPPORTED, "threshold of 77 bytes");
}

static void missing_features_body(void) {
  tarn_heap_config config = {.size = sizeof(config), .device = "sim:64M,vmm=off,pool=off"};
  refuse(&config, TARN_UNSUPPORTED, "no virtual memory management");
  CHECK_HAS(tarn_last_message(), "plain");
  config.backing = TARN_BACKING_POOL;
  refuse(&config, TARN_UNSUPPORTED, "no stream-ordered pools");
  config.backing = TARN_BACKING_PLAIN; /* every driver has it */
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, config.device, &config, 1));
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* ---- Environment ---- */

static void set(const char *name, const char *value) {
  CHECK_EQ(setenv(name, value, 1), 0);
}

static void environment_body(void) {
  set("TARN_PRESET", "exact-pool");
  tarni_settings settings = settings_of(&nothing_said);
  check_exact_pool(&settings);
  const tarn_heap_config none = {.size = sizeof(none), .preset = TARN_PRESET_NONE};
  settings = settings_of(&none); /* the program's word counts more */
  CHECK_EQ(settings.backing, TARN_BACKING_VMM);
}

static void power_buckets_environment_body(void) {
  set("TARN_PRESET", "power-buckets");
  const tarni_settings settings = settings_of(&nothing_said);
  check_power_buckets(&settings);
}

static void each_variable_body(void) {
  set("TARN_BACKING", "plain");
  set("TARN_ROUNDING", "power-of-two");
  set("TARN_CACHED_LIMIT", "0");
  set("TARN_CACHED_BLOCKS", "5");
  set("TARN_POOL_THRESHOLD", "3M");
  set("TARN_LIVE_LIMIT", "8M");
  tarni_settings settings = settings_of(&nothing_said);
  CHECK_EQ(settings.backing, TARN_BACKING_PLAIN);
  CHECK_EQ(settings.rounding, TARN_ROUNDING_POWER_OF_TWO);
  CHECK_EQ(settings.cached_limit, 0);
  CHECK_EQ(settings.cached_slots, 5);
  CHECK_EQ(settings.pool_threshold, 3 * MIB);
  CHECK_EQ(settings.live_limit, 8 * MIB);
  const tarn_heap_config said = {
      .size = sizeof(said), .backing = TARN_BACKING_POOL, .cached_limit_bytes = 5 * MIB};
  settings = settings_of(&said);
  CHECK_EQ(settings.backing, TARN_BACKING_POOL);
  CHECK_EQ(settings.cached_limit, 5 * MIB);
  rig r; /* nothing is kept then */
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &block));
  CHECK_EQ(rig_stats(&r).live_bytes, 4 * MIB);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_EQ(rig_stats(&r).cached_bytes, 0);
  CHECK_STATUS(rig_alloc(&r, 9 * MIB, r.streams[0], &block), TARN_LIMIT);
  rig_close(&r);
}

static const char *bad_name, *bad_value;

static void bad_value_body(void) {
  set(bad_name, bad_value);
  refuse(&nothing_said, TARN_OPTION, bad_name);
  CHECK_HAS(tarn_last_message(), bad_value);
}

/* ---- Cases ---- */

static void presets(void) {
  fake_run_alone(presets_body);
}

static void wrong_configs(void) {
  fake_run_alone(wrong_configs_body);
}

static void missing_features(void) {
  fake_run_alone(missing_features_body);
}

static void environment(void) {
  fake_run_alone(environment_body);
  fake_run_alone(power_buckets_environment_body);
}

static void each_variable(void) {
  fake_run_alone(each_variable_body);
}

static void bad_values(void) {
  static const char *const values[][2] = {{"TARN_PRESET", "numbers"},
                                          {"TARN_BACKING", "host"},
                                          {"TARN_ROUNDING", "9"},
                                          {"TARN_CACHED_LIMIT", "lots"},
                                          {"TARN_CACHED_BLOCKS", "-1"},
                                          {"TARN_POOL_THRESHOLD", "1.5G"},
                                          {"TARN_LIVE_LIMIT", "99999999999999999999"}};
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
    bad_name = values[i][0];
    bad_value = values[i][1];
    fake_run_alone(bad_value_body);
  }
}

static const test_case cases[] = {
    {"presets", presets},
    {"wrong configs", wrong_configs},
    {"devices without a feature", missing_features},
    {"presets by the environment", environment},
    {"each variable", each_variable},
    {"bad values", bad_values},
};

TEST_MAIN(cases)
