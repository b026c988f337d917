/* SPDX-License-Identifier: MIT
 *
 * Which driver calls fail: every one in an ordinary build; where a sanitizer makes that slow, every
 * fifth, and of each code others. */
#ifndef TARN_FAULT_STEP_H
#define TARN_FAULT_STEP_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FAULT_STEP = 5 };
#else
enum { FAULT_STEP = 1 };
#endif

#endif
