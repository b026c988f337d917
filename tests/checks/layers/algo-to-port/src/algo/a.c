/* SPDX-License-Identifier: MIT */
#include "port/port.h"
