/* SPDX-License-Identifier: MIT */
TARN_API int tarn_a(void);
TARN_API int tarn_b(void);
