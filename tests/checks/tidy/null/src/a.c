/* SPDX-License-Identifier: MIT */
#include <stddef.h>

int a(int b);

int a(int b) {
  const int *pointer = NULL;
  if (b > 2) {
    pointer = &b;
  }
  return *pointer;
}
