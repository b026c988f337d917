/* SPDX-License-Identifier: MIT
 *
 * The options of a simulated GPU. They follow its name: "sim:80G,seed=7"; docs/sim.md explains
 * them. Pure. */
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/text.h"
#include "port/sim/sim.h"

/* More than any address space; far below where sums of sizes could wrap. */
static const uint64_t max_capacity_bytes = (uint64_t)1 << 50;

static tarn_status option_fail(const char *option) {
  return tarni_fail(TARN_INVALID, "tarn_device_open", NULL,
                    "Options of the simulated GPU are SIZE, seed=N, id=N, "
                    "order=random|lazy|eager, granularity=SIZE (a power of two from 4K to 1G), "
                    "vmm=on|off, pool=on|off, register=on|off, fail=CALL:N[:TIMES[:CODE]] (600 "
                    "only for stream_query and event_query); "
                    "sizes go up to 1024T.",
                    "the simulated GPU does not know the option '%s'", option);
}

static bool parse_switch(const char *value, bool *out) {
  *out = strcmp(value, "on") == 0;
  return *out || strcmp(value, "off") == 0;
}

static bool parse_order(const char *value, sim_order *order) {
  static const char *const names[] = {
      [SIM_ORDER_RANDOM] = "random", [SIM_ORDER_LAZY] = "lazy", [SIM_ORDER_EAGER] = "eager"};
  for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    if (strcmp(value, names[i]) == 0) {
      *order = (sim_order)i;
      return true;
    }
  }
  return false;
}

static bool parse_call(const char *name, size_t length, tarn_call *call) {
  for (unsigned i = 0; i < TARN_CALL_COUNT; i++) {
    const char *known = tarn_call_name((tarn_call)i);
    if (strlen(known) == length && strncmp(known, name, length) == 0) {
      *call = (tarn_call)i;
      return true;
    }
  }
  *call = TARN_CALL_COUNT;
  return length == 3 && strncmp(name, "any", 3) == 0;
}

/* A number that ends the text or a colon; `rest` is what follows the colon, or NULL. */
static bool parse_part(const char *text, uint64_t *number, const char **rest) {
  char part[24];
  const size_t length = strcspn(text, ":");
  if (length >= sizeof(part)) {
    return false;
  }
  memcpy(part, text, length);
  part[length] = '\0';
  *rest = text[length] == ':' ? text + length + 1 : NULL;
  return tarni_text_to_number(part, number);
}

/* CALL:N[:TIMES[:CODE]]: once unless TIMES says else, 0 is for good; out of memory unless CODE. */
static bool parse_fault(const char *value, sim_fault *fault) {
  const char *rest = strchr(value, ':');
  uint64_t times = 1, code = SIM_CUDA_OUT_OF_MEMORY;
  if (rest == NULL || !parse_call(value, (size_t)(rest - value), &fault->call) ||
      !parse_part(rest + 1, &fault->nth, &rest) || fault->nth == 0 ||
      (rest != NULL && !parse_part(rest, &times, &rest)) ||
      (rest != NULL && !parse_part(rest, &code, &rest)) || rest != NULL || code == 0 ||
      code > 9999 || !tarni_sim_code_can_fail((int)code, fault->call)) {
    return false;
  }
  fault->times = times;
  fault->is_endless = times == 0;
  fault->code = (int)code;
  return true;
}

static bool parse_granularity(const char *value, uint64_t *bytes) {
  return tarni_text_to_bytes(value, bytes) && tarni_is_pow2(*bytes) && *bytes >= 4096 &&
         *bytes <= (1u << 30);
}

static bool parse_named(const char *name, const char *value, sim_config *config) {
  if (strcmp(name, "seed") == 0) {
    return tarni_text_to_number(value, &config->seed);
  }
  if (strcmp(name, "id") == 0) {
    return tarni_text_to_number(value, &config->id);
  }
  if (strcmp(name, "order") == 0) {
    return parse_order(value, &config->order);
  }
  if (strcmp(name, "granularity") == 0) {
    return parse_granularity(value, &config->granularity_bytes);
  }
  if (strcmp(name, "vmm") == 0) {
    return parse_switch(value, &config->has_vmm);
  }
  if (strcmp(name, "pool") == 0) {
    return parse_switch(value, &config->has_pool);
  }
  if (strcmp(name, "register") == 0) {
    return parse_switch(value, &config->has_register);
  }
  return strcmp(name, "fail") == 0 && parse_fault(value, &config->fault);
}

static bool parse_one(char *option, sim_config *config) {
  char *equals = strchr(option, '=');
  if (equals == NULL) {
    return tarni_text_to_bytes(option, &config->capacity_bytes) && config->capacity_bytes != 0 &&
           config->capacity_bytes <= max_capacity_bytes;
  }
  *equals = '\0';
  const bool is_good = parse_named(option, equals + 1, config);
  *equals = '=';
  return is_good;
}

tarn_status tarni_sim_config_parse(const char *options, sim_config *config) {
  *config = (sim_config){.capacity_bytes = (uint64_t)80 << 30,
                         .granularity_bytes = 2 << 20,
                         .seed = 1,
                         .has_vmm = true,
                         .has_pool = true,
                         .has_register = true};
  char text[256];
  if (strlen(options) >= sizeof(text)) {
    return option_fail(options);
  }
  (void)snprintf(text, sizeof(text), "%s", options);
  for (char *option = text; option != NULL && text[0] != '\0';) {
    char *comma = strchr(option, ',');
    if (comma != NULL) {
      *comma = '\0';
    }
    if (!parse_one(option, config)) {
      return option_fail(option);
    }
    option = comma != NULL ? comma + 1 : NULL;
  }
  return TARN_OK;
}
