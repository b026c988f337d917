/* SPDX-License-Identifier: MIT */
int a(int b, int c, int d, int e, int f, int g, int h);

int a(int b, int c, int d, int e, int f, int g, int h) {
  return b + c + d + e + f + g + h;
}
