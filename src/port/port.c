/* SPDX-License-Identifier: MIT
 *
 * The open devices, by name. Owns the list of open ports: one entry a name, with a count of its
 * users; the port closes with the last of them. Invariant: no two entries have the same name, and
 * an entry's count is not 0.
 *
 * Lock: registry_lock, held while a port is opened or closed, so that a name is opened once even
 * when several threads ask for it. Its rank allows driver calls under it. */
#include "port/port.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "base/option.h"
#include "base/text.h"

/* A device tells its whole name: what does not fit there would be another's. */
enum { PORT_NAME_CAPACITY = sizeof(((tarn_device_info *)NULL)->name) };

_Thread_local tarni_tally *tarni_port_payer;

/* A name taken apart: "cuda" and "cuda:0" give the same. */
typedef struct port_name {
  const tarni_port_table *table;
  int ordinal;
  const char *options;
  char text[PORT_NAME_CAPACITY]; /* in the one spelling by which the registry knows it */
} port_name;

/* lock: registry_lock, all fields. */
typedef struct port_entry {
  struct port_entry *next;
  tarni_port *port;
  uint64_t n_users;
  uint32_t fork; /* a parent's devices are not the child's */
  char name[PORT_NAME_CAPACITY];
} port_entry;

static tarni_lock registry_lock = TARNI_LOCK_INIT(TARNI_RANK_REGISTRY);
static port_entry *first_entry;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/* The lock may be held by a thread that the child does not have. */
static void free_lock_in_child(void) {
  tarni_lock_init(&registry_lock, TARNI_RANK_REGISTRY);
}

static void watch_forks(void) {
  (void)pthread_atfork(NULL, NULL, free_lock_in_child);
}

/* How many GPUs there are; 0 also when the driver is there but broken. */
static int count_gpus(void) {
  int count = 0;
  return tarni_port_cuda.count(&count) == TARN_OK ? count : 0;
}

/* What exists, for messages: "cuda:0 to cuda:3 and sim". */
static const char *existing_devices(int n_gpus, char *buffer, size_t capacity) {
  if (n_gpus == 0) {
    (void)snprintf(buffer, capacity, "There is no GPU here; there is \"sim\".");
  } else if (n_gpus == 1) {
    (void)snprintf(buffer, capacity, "There are \"cuda:0\" and \"sim\".");
  } else {
    (void)snprintf(buffer, capacity, "There are \"cuda:0\" to \"cuda:%d\" and \"sim\".",
                   n_gpus - 1);
  }
  return buffer;
}

static tarn_status bad_name(tarn_status status, const char *name, const char *why) {
  char remedy[96];
  const tarni_facts facts = {.device = name};
  return tarni_fail(status, "tarn_device_open", &facts,
                    existing_devices(count_gpus(), remedy, sizeof(remedy)),
                    "\"%.80s\" is not a device: %s", name, why);
}

static tarn_status parse_cuda(const char *text, const char *rest, port_name *name) {
  uint64_t ordinal = 0;
  if (rest[0] == ':' && !tarni_text_to_number(rest + 1, &ordinal)) {
    return bad_name(TARN_INVALID, text, "after \"cuda:\" comes the number of a GPU, nothing else");
  }
  int count = 0;
  TARN_TRY(tarni_port_cuda.count(&count));
  if (ordinal >= (uint64_t)count) {
    return bad_name(TARN_NO_DEVICE, text, count == 0 ? "no GPU was found" : "no such GPU");
  }
  name->table = &tarni_port_cuda;
  name->ordinal = (int)ordinal;
  name->options = "";
  (void)snprintf(name->text, sizeof(name->text), "cuda:%d", name->ordinal);
  return TARN_OK;
}

static tarn_status parse_sim(const char *text, const char *rest, port_name *name) {
  name->table = &tarni_port_sim;
  name->ordinal = 0;
  const size_t length = strlen(text);
  _Static_assert(PORT_NAME_CAPACITY == 128, "as the message says");
  if (length >= sizeof(name->text)) {
    return bad_name(TARN_INVALID, text, "a name has at most 127 characters");
  }
  if (rest[0] == '\0' || rest[1] == '\0') {
    (void)snprintf(name->text, sizeof(name->text), "sim");
    name->options = "";
  } else {
    memcpy(name->text, text, length + 1);
    name->options = name->text + strlen("sim:");
  }
  return TARN_OK;
}

/* What follows `kind` in the text: "" or ":..."; NULL when the text is of another kind. */
static const char *after_kind(const char *text, const char *kind) {
  const size_t length = strlen(kind);
  const bool is_kind = strncmp(text, kind, length) == 0;
  return is_kind && (text[length] == '\0' || text[length] == ':') ? text + length : NULL;
}

static tarn_status parse_name(const char *text, port_name *name) {
  const char *rest = after_kind(text, "cuda");
  if (rest != NULL) {
    return parse_cuda(text, rest, name);
  }
  rest = after_kind(text, "sim");
  if (rest != NULL) {
    return parse_sim(text, rest, name);
  }
  return bad_name(TARN_INVALID, text,
                  "names are \"cuda:NUMBER\", \"cuda\", \"sim\" and \"sim:OPTIONS\"");
}

/* The name to open where the caller gave none. */
static tarn_status default_name(const char **text) {
  const tarni_option_value *options;
  TARN_TRY(tarni_options(&options));
  if (options[TARNI_OPTION_DEVICE].text[0] != '\0') {
    *text = options[TARNI_OPTION_DEVICE].text;
  } else {
    int n = 0; /* no driver is no GPU; a driver that fails is an error, not a simulated GPU */
    TARN_TRY(tarni_port_cuda.count(&n));
    *text = n > 0 ? "cuda:0" : "sim";
  }
  return TARN_OK;
}

static port_entry *find_entry_locked(const char *name) {
  for (port_entry *entry = first_entry; entry != NULL; entry = entry->next) {
    if (strcmp(entry->name, name) == 0 && entry->fork == tarni_fork_count()) {
      return entry;
    }
  }
  return NULL;
}

/* Opens the port and enters it with one user. */
static tarn_status enter_port_locked(const port_name *name, tarni_port **port) {
  const tarni_facts facts = {.device = name->text, .requested_bytes = sizeof(port_entry)};
  port_entry *entry = calloc(1, sizeof(*entry));
  if (entry == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_device_open", &facts, "Free host memory.",
                      "no host memory for the entry of \"%s\"", name->text);
  }
  const tarn_status status = name->table->open(name->ordinal, name->options, port);
  if (status != TARN_OK || *port == NULL) {
    free(entry);
    *port = NULL;
    return status != TARN_OK ? status
                             : tarni_fail(TARN_DRIVER, "tarn_device_open", &facts,
                                          "This is a defect of the port; please report it.",
                                          "opening \"%s\" succeeded without a result", name->text);
  }
  tarn_assert((*port)->table == name->table);
  entry->port = *port;
  entry->n_users = 1;
  entry->fork = (*port)->fork = tarni_fork_watch();
  memcpy(entry->name, name->text, sizeof(entry->name));
  entry->next = first_entry;
  first_entry = entry;
  return TARN_OK;
}

tarn_status tarni_port_open(const char *name, tarni_port **port) {
  tarn_assert(port != NULL);
  *port = NULL;
  const tarni_option_value *options;
  TARN_TRY(tarni_options(&options)); /* a bad or misspelt variable is never ignored */
  if (name == NULL) {
    TARN_TRY(default_name(&name));
  }
  port_name parsed = {0};
  TARN_TRY(parse_name(name, &parsed));
  tarn_status status = TARN_OK;
  (void)pthread_once(&watch_once, watch_forks);
  tarni_lock_acquire(&registry_lock);
  port_entry *entry = find_entry_locked(parsed.text);
  if (entry != NULL) {
    entry->n_users++;
    *port = entry->port;
  } else {
    status = enter_port_locked(&parsed, port);
  }
  tarni_lock_release(&registry_lock);
  return status;
}

void tarni_port_close(tarni_port *port) {
  if (port == NULL) {
    return;
  }
  if (port->table == &tarni_port_host) { /* has no name, and one user */
    port->table->close(port);
    return;
  }
  tarni_lock_acquire(&registry_lock);
  port_entry **link = &first_entry;
  while (*link != NULL && (*link)->port != port) {
    link = &(*link)->next;
  }
  port_entry *entry = *link;
  tarn_assert(entry != NULL && "closed more often than opened");
  if (entry != NULL && --entry->n_users == 0) {
    *link = entry->next;
    if (entry->fork == tarni_fork_count()) { /* a child leaves alone what is its parent's */
      port->table->close(port);
    }
    free(entry);
  }
  tarni_lock_release(&registry_lock);
}
