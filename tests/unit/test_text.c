/* SPDX-License-Identifier: MIT
 *
 * Numbers and byte sizes as text. */
#include "base/text.h"

#include "base/rng.h"
#include "support/test.h"

static void numbers(void) {
  uint64_t number = 77;
  CHECK(tarni_text_to_number("0", &number));
  CHECK_EQ(number, 0);
  CHECK(tarni_text_to_number("007", &number));
  CHECK_EQ(number, 7);
  CHECK(tarni_text_to_number("18446744073709551615", &number));
  CHECK_EQ(number, UINT64_MAX);
}

static void junk(void) {
  static const char *const texts[] = {"",
                                      " ",
                                      "-1",
                                      "+1",
                                      "1 ",
                                      " 1",
                                      "1.5G",
                                      "0x10",
                                      "G",
                                      "B",
                                      "1X",
                                      "1KK",
                                      "1Ki",
                                      "1iB",
                                      "1GiBB",
                                      "1G2",
                                      "1e3",
                                      "1 GiB",
                                      "12\n",
                                      "\xff",
                                      "1\xc2\xb5",
                                      "1Kib ",
                                      "KiB",
                                      "--",
                                      "18446744073709551616",
                                      "99999999999999999999999",
                                      "18014398509481984K",
                                      "16384P"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    uint64_t number = 77;
    if (!CHECK(!tarni_text_to_bytes(texts[i], &number))) {
      test_note("accepted: '%s'", texts[i]);
    }
    CHECK_EQ(number, 77);
  }
  uint64_t number = 77;
  CHECK(!tarni_text_to_number("4K", &number));
  CHECK(!tarni_text_to_number("18446744073709551616", &number));
  CHECK_EQ(number, 77);
}

static void units(void) {
  static const struct {
    const char *text;
    uint64_t bytes;
  } sizes[] = {{"4096", 4096},
               {"4096B", 4096},
               {"4k", 4096},
               {"4KB", 4096},
               {"4kib", 4096},
               {"64MiB", UINT64_C(64) << 20},
               {"80G", UINT64_C(80) << 30},
               {"80gb", UINT64_C(80) << 30},
               {"16TiB", UINT64_C(16) << 40},
               {"16383P", UINT64_C(16383) << 50},
               {"0G", 0}};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    uint64_t bytes = 77;
    CHECK(tarni_text_to_bytes(sizes[i].text, &bytes));
    CHECK_EQ(bytes, sizes[i].bytes);
  }
}

static void printed(void) {
  char buffer[TARNI_TEXT_NUMBER];
  CHECK_TEXT(tarni_text_from_bytes(0, buffer), "0");
  CHECK_TEXT(tarni_text_from_bytes(1023, buffer), "1023");
  CHECK_TEXT(tarni_text_from_bytes(1024, buffer), "1K");
  CHECK_TEXT(tarni_text_from_bytes(1536, buffer), "1536");
  CHECK_TEXT(tarni_text_from_bytes(1536u << 10, buffer), "1536K");
  CHECK_TEXT(tarni_text_from_bytes(UINT64_C(80) << 30, buffer), "80G");
  CHECK_TEXT(tarni_text_from_bytes(UINT64_C(1) << 63, buffer), "8192P");
  CHECK_TEXT(tarni_text_from_bytes(UINT64_MAX, buffer), "18446744073709551615");
}

/* What is printed is read back as the same number. */
static void there_and_back(void) {
  tarni_rng rng = {1};
  uint64_t n_wrong = 0;
  for (int i = 0; i < 10000; i++) {
    const uint64_t bytes = tarni_rng_next(&rng) << tarni_rng_below(&rng, 64);
    char buffer[TARNI_TEXT_NUMBER];
    uint64_t again = ~bytes;
    n_wrong += !tarni_text_to_bytes(tarni_text_from_bytes(bytes, buffer), &again) || again != bytes;
  }
  CHECK_EQ(n_wrong, 0);
}

static const test_case cases[] = {
    {"text: numbers", numbers},
    {"text: junk and overflow are refused", junk},
    {"text: units", units},
    {"text: printed", printed},
    {"text: there and back", there_and_back},
};
TEST_MAIN(cases)
