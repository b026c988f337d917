/* SPDX-License-Identifier: MIT */
/* TODO: later */
