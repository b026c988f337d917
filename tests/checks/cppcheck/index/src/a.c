/* SPDX-License-Identifier: MIT */
int a(void);

int a(void) {
  int numbers[4] = {0};
  return numbers[4];
}
