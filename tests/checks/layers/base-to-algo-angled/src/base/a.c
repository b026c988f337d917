/* SPDX-License-Identifier: MIT */
#include <algo/a.h>
