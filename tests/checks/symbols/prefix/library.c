/* SPDX-License-Identifier: MIT */
int tarn_a(void);
int helper(void);

__attribute__((visibility("hidden"))) int helper(void) {
  return 1;
}

int tarn_a(void) {
  return helper();
}
