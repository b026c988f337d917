/* SPDX-License-Identifier: MIT */
#include "../src/base/a.h"
