/* SPDX-License-Identifier: MIT */
#include "base/a.h"
