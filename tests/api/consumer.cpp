// SPDX-License-Identifier: MIT
//
// The consumer in C++: the same program, so that the headers' C++ side is linked and run too.
#include "consumer.c"
