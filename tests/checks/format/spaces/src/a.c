/* SPDX-License-Identifier: MIT */
int  a( void ){return 1;}
