/* SPDX-License-Identifier: MIT */
int tarn_a(void);
int tarn_a(void) {
  return 1;
}
