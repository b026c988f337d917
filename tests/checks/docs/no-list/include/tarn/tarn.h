/* SPDX-License-Identifier: MIT */
#define TARN_STATUS_MAP(X)                                                                         \
  X(OK, 0, "success")                                                                              \
  X(INVALID, 1, "invalid argument")
