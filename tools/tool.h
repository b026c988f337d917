/* SPDX-License-Identifier: MIT
 *
 * What the files of the tarn command share: the subcommands, one a file; the parsing of their
 * arguments; and printing. The command knows tarn by its public headers only.
 *
 * Exit status: 0 success, 1 something failed at run time, 2 wrong arguments. Results go to stdout,
 * messages to stderr. */
#ifndef TARN_TOOL_H
#define TARN_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* ---- Subcommands ---------------------------------------------------------------------------- */
typedef struct tool_command {
  const char *name;
  const char *arguments; /* "[--json]" */
  const char *summary;
  int (*run)(const struct tool_command *command, int argc, char **argv);
} tool_command;

/* The command line that the process was started with. */
extern char **tool_command_line;

int tool_bench(const tool_command *command, int argc, char **argv);
int tool_info(const tool_command *command, int argc, char **argv);
int tool_options(const tool_command *command, int argc, char **argv);
int tool_plan(const tool_command *command, int argc, char **argv);
int tool_probe(const tool_command *command, int argc, char **argv);
int tool_replay(const tool_command *command, int argc, char **argv);
int tool_status(const tool_command *command, int argc, char **argv);

/* The benchmarks of `tarn bench`. */
int bench_copy(const tool_command *command, int argc, char **argv);
int bench_pair(const tool_command *command, int argc, char **argv);
int bench_pinned(const tool_command *command, int argc, char **argv);
int bench_random(const tool_command *command, int argc, char **argv);

/* ---- argument.c ----------------------------------------------------------------------------- */
/* An argument that a subcommand takes: a switch, or one with a value. */
typedef struct tool_argument {
  const char *name; /* "--json" */
  bool *is_given;
  const char **value; /* NULL for a switch */
} tool_argument;

/* Reads argv[0..argc). Returns -1 to go on, else the exit status: wrong arguments have been told
 * on stderr, or --help has been answered. */
int tool_parse(const tool_command *command, const tool_argument *arguments, size_t count, int argc,
               char **argv);
/* The same for commands that also take files: words that are no argument and do not begin with a
 * dash ("-" itself is one). They go to files->paths, which has room for argc of them. */
typedef struct tool_files {
  const char **paths;
  size_t count;
} tool_files;
int tool_parse_files(const tool_command *command, const tool_argument *arguments, size_t count,
                     int argc, char **argv, tool_files *files);
void tool_usage(const tool_command *command);

/* Values of arguments: false when the text is none, and that has been told on stderr. Bytes take a
 * unit, a power of 1024: 4096, 64K, 80G, 80GiB. */
bool tool_read_number(const char *option, const char *text, uint64_t minimum, uint64_t maximum,
                      uint64_t *number);
bool tool_read_bytes(const char *option, const char *text, uint64_t *bytes);

/* Tells the library's last error on stderr and returns TOOL_FAILED. */
int tool_fail(void);

/* ---- print.c -------------------------------------------------------------------------------- */
/* Room for one formatted quantity. */
enum { TOOL_TEXT = 32 };

/* "140.4 GiB", "2 MiB", "512 B". Returns the buffer. */
char *tool_bytes(uint64_t bytes, char buffer[TOOL_TEXT]);
/* "850 ns", "23.1 us", "1.20 ms". Returns the buffer. */
char *tool_duration(uint64_t nanoseconds, char buffer[TOOL_TEXT]);

/* Whether stdout takes colours: a terminal, and NO_COLOR is not set. */
bool tool_has_colour(void);

/* How many bytes the character of UTF-8 that begins here has; 0: none begins here. */
size_t tool_utf8_length(const char *text);
/* A string as JSON, with its quotes. */
void tool_json_text(const char *text);
/* `, "name": ` and the value; the first member of an object has no comma. */
void tool_json_member(const char *name, bool is_first);
void tool_json_number(const char *name, uint64_t number);
/* `digits` after the point. */
void tool_json_real(const char *name, double number, int digits);
void tool_json_switch(const char *name, bool value);
void tool_json_string(const char *name, const char *text);

/* A cell of a Markdown table: | is escaped, empty text becomes a dash. */
void tool_markdown_cell(const char *text);

#endif
