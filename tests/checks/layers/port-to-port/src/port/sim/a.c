/* SPDX-License-Identifier: MIT */
#include "../cuda/driver.h"
