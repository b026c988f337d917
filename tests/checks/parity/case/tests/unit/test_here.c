/* SPDX-License-Identifier: MIT */
static const char *const cases[] = {"stays"};
