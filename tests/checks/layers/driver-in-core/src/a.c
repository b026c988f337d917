/* SPDX-License-Identifier: MIT */
#include <cuda.h>
