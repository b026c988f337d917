/* SPDX-License-Identifier: MIT */
#include "port/sim/sim.h"
