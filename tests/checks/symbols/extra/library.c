/* SPDX-License-Identifier: MIT */
int tarn_a(void);
int tarni_b(void);
int tarn_a(void) {
  return 1;
}
int tarni_b(void) {
  return 2;
}
