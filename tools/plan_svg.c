/* SPDX-License-Identifier: MIT
 *
 * The picture of a plan: time across, offset up, a rectangle a buffer. The colour says the lifetime
 * (short is warm, long is cold), the brightness varies so that neighbours can be told apart; a
 * label stands where it fits. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan.h"
#include "tool.h"

enum {
  PAGE_WIDTH = 1600,
  PAGE_HEIGHT = 960,
  PLOT_LEFT = 96,
  PLOT_TOP = 64,
  PLOT_RIGHT = PAGE_WIDTH - 40,
  PLOT_BOTTOM = PAGE_HEIGHT - 56,
  TICKS = 8,
};

typedef struct svg_page {
  FILE *file;
  const plan_job *job;
  uint64_t first; /* the time at the left edge */
  uint64_t last;
  double x_scale;
  double y_scale;
} svg_page;

static double x_of(const svg_page *page, uint64_t time) {
  return PLOT_LEFT + (double)(time - page->first) * page->x_scale;
}

static double y_of(const svg_page *page, uint64_t offset) {
  return PLOT_BOTTOM - (double)offset * page->y_scale;
}

static void find_frame(svg_page *page) {
  const plan_job *job = page->job;
  page->first = UINT64_MAX;
  for (uint64_t i = 0; i < job->count; i++) {
    const tarn_plan_buffer *buffer = &job->buffers[i];
    if (buffer->bytes != 0 && buffer->begin < buffer->end) {
      page->first = buffer->begin < page->first ? buffer->begin : page->first;
      page->last = buffer->end > page->last ? buffer->end : page->last;
    }
  }
  if (page->first >= page->last) {
    page->first = 0;
    page->last = 1;
  }
  const uint64_t height = job->info.height > job->info.bound ? job->info.height : job->info.bound;
  page->x_scale = (double)(PLOT_RIGHT - PLOT_LEFT) / (double)(page->last - page->first);
  page->y_scale = (double)(PLOT_BOTTOM - PLOT_TOP) / (height == 0 ? 1.0 : (double)height);
}

/* A name as XML may have it: what is no text, or means something there, becomes a low line. */
static void draw_name(const svg_page *page, const char *name) {
  for (const char *at = name; *at != '\0';) {
    const size_t n = tool_utf8_length(at);
    const bool is_plain = n > 1 || (n == 1 && *at >= 0x20 && strchr("<>&\"", *at) == NULL);
    (void)fprintf(page->file, "%.*s", is_plain ? (int)n : 1, is_plain ? at : "_");
    at += n != 0 ? n : 1;
  }
}

static void draw_head(const svg_page *page) {
  const tarn_plan_info *info = &page->job->info;
  char height[TOOL_TEXT];
  char bound[TOOL_TEXT];
  const double gap =
      info->bound == 0 ? 0.0 : 100.0 * ((double)info->height / (double)info->bound - 1.0);
  (void)fprintf(page->file,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "viewBox=\"0 0 %d %d\" font-family=\"Helvetica,Arial,sans-serif\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                PAGE_WIDTH, PAGE_HEIGHT, PAGE_WIDTH, PAGE_HEIGHT);
  const char *name = strrchr(page->job->path, '/');
  (void)fprintf(page->file, "<text x=\"%d\" y=\"28\" font-size=\"20\" fill=\"#222\">", PLOT_LEFT);
  draw_name(page, name == NULL ? page->job->path : name + 1);
  (void)fprintf(page->file,
                ": %llu buffers in %llu bytes (%s), bound %llu (%s), gap %.3f %%%s</text>\n",
                (unsigned long long)page->job->count, (unsigned long long)info->height,
                tool_bytes(info->height, height), (unsigned long long)info->bound,
                tool_bytes(info->bound, bound), gap, info->is_proven ? ", proven lowest" : "");
  (void)fprintf(page->file,
                "<text x=\"%d\" y=\"48\" font-size=\"13\" fill=\"#666\">time across, offset up; "
                "colour by lifetime: warm is short, cold is long; shaded: where the bound binds, "
                "time %llu to %llu</text>\n",
                PLOT_LEFT, (unsigned long long)info->bind_begin,
                (unsigned long long)info->bind_end);
}

/* So many of the equal parts of a whole, rounded down; it may be less than the parts are. */
static uint64_t part_of(uint64_t whole, uint64_t parts) {
  return whole / TICKS * parts + whole % TICKS * parts / TICKS;
}

/* Ticks of both axes, with thin lines across. */
static void draw_axes(const svg_page *page) {
  const uint64_t height = page->job->info.height;
  for (uint64_t i = 0; i <= TICKS; i++) {
    char text[TOOL_TEXT];
    const uint64_t offset = part_of(height, i);
    const uint64_t time = page->first + part_of(page->last - page->first, i);
    const double y = y_of(page, offset);
    const double x = x_of(page, time);
    (void)fprintf(page->file,
                  "<path d=\"M%d %.1fH%d\" stroke=\"#e4e4e4\"/><text x=\"%d\" y=\"%.1f\" "
                  "font-size=\"12\" fill=\"#444\" text-anchor=\"end\">%s</text>\n",
                  PLOT_LEFT, y, PLOT_RIGHT, PLOT_LEFT - 6, y + 4, tool_bytes(offset, text));
    (void)fprintf(page->file,
                  "<path d=\"M%.1f %dV%d\" stroke=\"#e4e4e4\"/><text x=\"%.1f\" y=\"%d\" "
                  "font-size=\"12\" fill=\"#444\" text-anchor=\"middle\">%llu</text>\n",
                  x, PLOT_TOP, PLOT_BOTTOM, x, PLOT_BOTTOM + 18, (unsigned long long)time);
  }
}

/* Warm for short lifetimes, cold for long ones, on a logarithmic scale. */
static int hue_of(const svg_page *page, const tarn_plan_buffer *buffer) {
  const double span = (double)(buffer->end - buffer->begin);
  const double whole = (double)(page->last - page->first);
  return 20 + (int)(200.0 * log2(1.0 + span) / log2(1.0 + whole));
}

static void draw_buffer(const svg_page *page, uint64_t index) {
  const tarn_plan_buffer *buffer = &page->job->buffers[index];
  const uint64_t offset = page->job->offsets[index];
  if (buffer->bytes == 0 || buffer->begin >= buffer->end) {
    return;
  }
  const double x = x_of(page, buffer->begin);
  const double y = y_of(page, offset + buffer->bytes);
  const double width = x_of(page, buffer->end) - x;
  const double height = y_of(page, offset) - y;
  const bool has_border = width >= 3.0 && height >= 3.0;
  char size[TOOL_TEXT];
  (void)fprintf(page->file,
                "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                "fill=\"hsl(%d,62%%,%d%%)\"%s>",
                x, y, width < 0.3 ? 0.3 : width, height < 0.3 ? 0.3 : height, hue_of(page, buffer),
                60 + (int)(index * 7 % 18),
                has_border ? " stroke=\"#fff\" stroke-width=\".6\"" : "");
  (void)fprintf(page->file, "<title>%llu: %s at %llu, time %llu to %llu</title></rect>\n",
                (unsigned long long)page->job->ids[index], tool_bytes(buffer->bytes, size),
                (unsigned long long)offset, (unsigned long long)buffer->begin,
                (unsigned long long)buffer->end);
}

/* "17: 2 MiB" where that fits, else "17", else nothing. */
static void draw_label(const svg_page *page, uint64_t index) {
  const tarn_plan_buffer *buffer = &page->job->buffers[index];
  char size[TOOL_TEXT];
  char text[2 * TOOL_TEXT];
  const double width = (double)(buffer->end - buffer->begin) * page->x_scale;
  const double height = (double)buffer->bytes * page->y_scale;
  const double letter = 6.2;
  if (buffer->begin >= buffer->end || height < 12.0) {
    return;
  }
  (void)snprintf(text, sizeof(text), "%llu: %s", (unsigned long long)page->job->ids[index],
                 tool_bytes(buffer->bytes, size));
  if ((double)strlen(text) * letter > width - 4.0) {
    *strchr(text, ':') = '\0';
  }
  if ((double)strlen(text) * letter > width - 4.0) {
    return;
  }
  (void)fprintf(page->file,
                "<text x=\"%.1f\" y=\"%.1f\" font-size=\"11\" fill=\"#111\" "
                "text-anchor=\"middle\" pointer-events=\"none\">%s</text>\n",
                x_of(page, buffer->begin) + width / 2.0,
                y_of(page, page->job->offsets[index]) - height / 2.0 + 4.0, text);
}

/* The bound as a line, and the stretch of time where it binds. */
static void draw_bound(const svg_page *page) {
  const tarn_plan_info *info = &page->job->info;
  const double y = y_of(page, info->bound);
  const double x = x_of(page, info->bind_begin);
  const double width = x_of(page, info->bind_end) - x;
  (void)fprintf(page->file,
                "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"#000\" "
                "fill-opacity=\".12\"/>\n",
                x, PLOT_TOP, width < 1.0 ? 1.0 : width, PLOT_BOTTOM - PLOT_TOP);
  (void)fprintf(page->file,
                "<path d=\"M%d %.1fH%d\" stroke=\"#c00\" stroke-width=\"1.5\" "
                "stroke-dasharray=\"8 4\"/><text x=\"%d\" y=\"%.1f\" font-size=\"12\" "
                "fill=\"#c00\" text-anchor=\"end\">bound</text>\n",
                PLOT_LEFT, y, PLOT_RIGHT, PLOT_RIGHT, y - 4.0);
}

bool plan_job_draw(const plan_job *job, const char *path) {
  svg_page page = {.file = fopen(path, "w"), .job = job};
  if (page.file == NULL) {
    (void)fprintf(stderr, "tarn: cannot write %s: %s\n", path, strerror(errno));
    return false;
  }
  find_frame(&page);
  draw_head(&page);
  draw_axes(&page);
  for (uint64_t i = 0; i < job->count; i++) {
    draw_buffer(&page, i);
  }
  for (uint64_t i = 0; i < job->count; i++) {
    draw_label(&page, i);
  }
  if (job->count != 0) {
    draw_bound(&page);
  }
  (void)fprintf(page.file, "</svg>\n");
  const bool is_bad = ferror(page.file) != 0;
  if (fclose(page.file) != 0 || is_bad) {
    (void)fprintf(stderr, "tarn: cannot write %s: %s\n", path, strerror(errno));
    return false;
  }
  return true;
}
