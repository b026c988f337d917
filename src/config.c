/* SPDX-License-Identifier: MIT
 *
 * What a heap is to be: its config, the environment and the presets, in this order of precedence,
 * brought together. Nothing that was asked for is ignored: what does not fit is an error. */
#include "base/option.h"
#include "internal.h"

enum { CONFIG_STACK_MAX = 32, CONFIG_GUARD_MAX = 1 << 20 };

static const uint64_t no_limit = UINT64_MAX;

static tarn_status config_range(const char *what, int value, int greatest) {
  if (value >= 0 && value <= greatest) {
    return TARN_OK;
  }
  return tarni_fail(TARN_INVALID, "tarn_heap_create", NULL, "Use one of the values of its type.",
                    "%s is %d", what, value);
}

static tarn_status choices_check(const tarn_heap_config *config) {
  TARN_TRY(config_range("stealing", (int)config->stealing, TARN_STEAL_ALWAYS));
  TARN_TRY(config_range("preset", (int)config->preset, TARN_PRESET_EXACT_POOL));
  TARN_TRY(config_range("backing", (int)config->backing, TARN_BACKING_PLAIN));
  return config_range("rounding", (int)config->rounding, TARN_ROUNDING_POWER_OF_TWO);
}

static tarni_settings preset_settings(tarn_preset preset) {
  if (preset == TARN_PRESET_POWER_BUCKETS) {
    return (tarni_settings){.backing = TARN_BACKING_PLAIN,
                            .rounding = TARN_ROUNDING_POWER_OF_TWO,
                            .cached_limit = (uint64_t)256 << 20,
                            .cached_slots = no_limit,
                            .has_slots_by_limit = true,
                            .live_limit = no_limit};
  }
  if (preset == TARN_PRESET_EXACT_POOL) {
    return (tarni_settings){.backing = TARN_BACKING_POOL,
                            .rounding = TARN_ROUNDING_EXACT,
                            .cached_limit = (uint64_t)1 << 30,
                            .cached_slots = 64,
                            .pool_threshold = (uint64_t)512 << 20,
                            .live_limit = no_limit};
  }
  return (tarni_settings){.backing = TARN_BACKING_VMM,
                          .rounding = TARN_ROUNDING_CLASSES,
                          .cached_limit = (uint64_t)1 << 30,
                          .cached_slots = no_limit,
                          .live_limit = no_limit};
}

/* The config's number, else the environment's (options may be NULL), else the preset's. Choices of
 * the environment count from 0, the config's from 1. */
static uint64_t chosen(uint64_t config, const tarni_option_value *option, uint64_t first,
                       uint64_t preset) {
  if (config != 0) {
    return config;
  }
  return option != NULL && option->is_set ? option->number + first : preset;
}

static const tarni_option_value *option_at(const tarni_option_value *options, tarni_option_id id) {
  return options != NULL ? &options[id] : NULL;
}

static tarni_settings settings_of(const tarn_heap_config *config,
                                  const tarni_option_value *options) {
  tarni_settings s = preset_settings((tarn_preset)chosen(
      config->preset, option_at(options, TARNI_OPTION_PRESET), TARN_PRESET_NONE, TARN_PRESET_NONE));
  const tarni_option_value *slots = option_at(options, TARNI_OPTION_CACHED_BLOCKS);
  s.backing = (tarn_backing)chosen(config->backing, option_at(options, TARNI_OPTION_BACKING),
                                   TARN_BACKING_VMM, s.backing);
  s.rounding = (tarn_rounding)chosen(config->rounding, option_at(options, TARNI_OPTION_ROUNDING),
                                     TARN_ROUNDING_CLASSES, s.rounding);
  s.cached_limit = chosen(config->cached_limit_bytes, option_at(options, TARNI_OPTION_CACHED_LIMIT),
                          0, s.cached_limit);
  s.cached_limit = s.cached_limit == 1 ? 0 : s.cached_limit; /* none */
  s.has_slots_by_limit = s.has_slots_by_limit && config->cached_blocks_per_size == 0 &&
                         (slots == NULL || !slots->is_set);
  s.cached_slots = chosen(config->cached_blocks_per_size, slots, 0, s.cached_slots);
  s.pool_threshold = chosen(config->pool_threshold_bytes,
                            option_at(options, TARNI_OPTION_POOL_THRESHOLD), 0, s.pool_threshold);
  s.live_limit = chosen(config->live_limit_bytes, option_at(options, TARNI_OPTION_LIVE_LIMIT), 0,
                        s.live_limit);
  return s;
}

static bool switched(bool config, const tarni_option_value *options, tarni_option_id id) {
  return config || (options != NULL && options[id].number != 0);
}

static uint64_t numbered(uint64_t config, const tarni_option_value *options, tarni_option_id id) {
  return config != 0 || options == NULL ? config : options[id].number;
}

static tarni_care care_of(const tarn_heap_config *config, const tarni_option_value *options) {
  return (tarni_care){
      .is_deterministic = switched(config->is_deterministic, options, TARNI_OPTION_DETERMINISTIC),
      .is_verifying_streams =
          switched(config->is_verifying_streams, options, TARNI_OPTION_VERIFY_STREAMS),
      .is_asking_captures =
          switched(config->is_asking_captures, options, TARNI_OPTION_ASK_CAPTURES),
      .is_secure = switched(config->is_secure, options, TARNI_OPTION_SECURE),
      .fill_alloc = (uint8_t)numbered(config->fill_alloc, options, TARNI_OPTION_FILL_ALLOC),
      .fill_free = (uint8_t)numbered(config->fill_free, options, TARNI_OPTION_FILL_FREE),
      .stack_depth = (uint32_t)numbered(config->stack_depth, options, TARNI_OPTION_STACK_DEPTH),
      .guard_bytes = numbered(config->guard_bytes, options, TARNI_OPTION_GUARD),
      .quarantine_bytes = numbered(config->quarantine_bytes, options, TARNI_OPTION_QUARANTINE)};
}

static bool has_debug(const tarni_care *care) {
  return care->is_secure || care->fill_alloc != 0 || care->fill_free != 0 ||
         care->stack_depth != 0 || care->guard_bytes != 0 || care->quarantine_bytes != 0;
}

static tarn_status check_ranges(const tarni_care *care) {
  if (care->stack_depth > CONFIG_STACK_MAX) {
    return tarni_fail(TARN_INVALID, "tarn_heap_create", NULL, "Use a depth up to 32.",
                      "stack_depth is %u", care->stack_depth);
  }
  if (care->guard_bytes > CONFIG_GUARD_MAX) {
    return tarni_fail(TARN_INVALID, "tarn_heap_create", NULL, "Use guards of up to 1048576 bytes.",
                      "guard_bytes is %llu", (unsigned long long)care->guard_bytes);
  }
  if (care->is_secure && care->fill_free != 0) {
    return tarni_fail(TARN_INVALID, "tarn_heap_create", NULL, "Choose one of the two.",
                      "a secure heap fills freed blocks with zeros, and fill_free is 0x%02x",
                      care->fill_free);
  }
  return TARN_OK;
}

/* What only heaps of chunks can do. */
static tarn_status check_care(const tarni_settings *settings) {
  TARN_TRY(check_ranges(&settings->care));
  if (tarni_settings_have_buckets(settings) && has_debug(&settings->care)) {
    return tarni_fail(TARN_UNSUPPORTED, "tarn_heap_create", NULL,
                      "Use backing vmm and rounding classes, or switch them off.",
                      "a heap whose blocks are the driver's own allocations has no fills, guards, "
                      "quarantine or stacks");
  }
  if (tarni_settings_have_buckets(settings) && settings->care.is_deterministic) {
    return tarni_fail(TARN_UNSUPPORTED, "tarn_heap_create", NULL,
                      "Use backing vmm and rounding classes, or switch it off.",
                      "a heap whose blocks are the driver's own allocations cannot be "
                      "deterministic: the driver chooses their addresses");
  }
  return TARN_OK;
}

/* What only heaps of driver allocations have must not be asked of another one. */
static tarn_status check_fit(const tarn_heap_config *config, const tarni_settings *settings) {
  const bool has_buckets = tarni_settings_have_buckets(settings);
  const bool wants_buckets = config->cached_blocks_per_size != 0 ||
                             config->cached_limit_bytes != 0 || config->live_limit_bytes != 0;
  if (wants_buckets && !has_buckets) {
    return tarni_fail(TARN_UNSUPPORTED, "tarn_heap_create", NULL,
                      "Choose another backing or rounding, or leave these fields 0.",
                      "a heap of backing vmm and rounding classes has no limit on cached blocks, "
                      "cached bytes or live bytes");
  }
  if (config->pool_threshold_bytes != 0 && settings->backing != TARN_BACKING_POOL) {
    return tarni_fail(TARN_UNSUPPORTED, "tarn_heap_create", NULL,
                      "Choose backing pool, or leave the field 0.",
                      "a pool threshold of %llu bytes is asked for, but the backing is no pool",
                      (unsigned long long)config->pool_threshold_bytes);
  }
  return TARN_OK;
}

tarni_settings tarni_settings_given(const tarn_heap_config *config) {
  tarni_settings settings = settings_of(config, NULL);
  settings.care = care_of(config, NULL);
  return settings;
}

tarn_status tarni_settings_resolve(const tarn_heap_config *config, tarni_settings *settings) {
  const tarni_option_value *options;
  TARN_TRY(TARNI_RESERVED(config, reserved_u32, "tarn_heap_create"));
  TARN_TRY(TARNI_RESERVED(config, reserved_switches, "tarn_heap_create"));
  TARN_TRY(TARNI_RESERVED(config, reserved_u32_2, "tarn_heap_create"));
  TARN_TRY(choices_check(config));
  TARN_TRY(tarni_options(&options));
  *settings = settings_of(config, options);
  settings->care = care_of(config, options);
  TARN_TRY(check_care(settings));
  return check_fit(config, settings);
}
