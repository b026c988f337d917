# SPDX-License-Identifier: MIT
#
# What a profile turns on, in one place: the Makefile and CMakePresets.json both only name one. Every
# value can still be set by hand with -D. Must be included before project(), because a profile may
# choose the compiler.
set(TARN_PROFILE release CACHE STRING "release, dev, asan, tsan, coverage or fuzz")

# The values below go into the cache once, so one build folder is of one profile for good.
set(tarn_profile_of_folder ${TARN_PROFILE} CACHE INTERNAL "")
if(NOT tarn_profile_of_folder STREQUAL TARN_PROFILE)
  message(FATAL_ERROR "This build folder was made for TARN_PROFILE=${tarn_profile_of_folder}, not "
    "${TARN_PROFILE}. Use another folder, or remove this one.")
endif()

set(build_type Debug)
set(debug_level 2)
set(werror ON)
set(shared ON)
set(timeout_scale 1)
set(flags "")
if(TARN_PROFILE STREQUAL "release")
  set(build_type Release)
  set(debug_level 0)
  set(werror OFF)
elseif(TARN_PROFILE STREQUAL "dev")
  set(flags -Og)
elseif(TARN_PROFILE STREQUAL "asan")
  set(flags -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  set(shared OFF)
  set(timeout_scale 5)
elseif(TARN_PROFILE STREQUAL "tsan")
  set(flags -O1 -fsanitize=thread -fno-omit-frame-pointer)
  set(shared OFF)
  set(timeout_scale 10)
elseif(TARN_PROFILE STREQUAL "coverage")
  set(flags -O0 --coverage -fprofile-update=atomic)
  set(shared OFF)
  set(timeout_scale 3)
elseif(TARN_PROFILE STREQUAL "fuzz")
  set(flags -O1 -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all)
  set(shared OFF)
  set(timeout_scale 5)
  set(CMAKE_C_COMPILER clang CACHE STRING "libFuzzer is a part of clang")
else()
  message(FATAL_ERROR "TARN_PROFILE is '${TARN_PROFILE}'. Give one of release, dev, asan, tsan, "
    "coverage, fuzz.")
endif()

set(CMAKE_BUILD_TYPE ${build_type} CACHE STRING "Release or Debug")
set(CMAKE_C_FLAGS_RELEASE "-O2" CACHE STRING "-O2: hits are short, code size matters")
set(CMAKE_C_FLAGS_DEBUG "-g" CACHE STRING "The profile sets the optimisation level")
set(TARN_DEBUG_LEVEL ${debug_level} CACHE STRING "0: no assertions, 1: cheap ones, 2: all")
set(TARN_PROFILE_FLAGS "${flags}" CACHE STRING "Flags to compile and link with, as a list")
set(TARN_TIMEOUT_SCALE ${timeout_scale} CACHE STRING "How much longer tests may take")
option(TARN_WERROR "Warnings are errors" ${werror})
option(TARN_SHARED "Build libtarn.so beside libtarn.a" ${shared})
option(TARN_TESTS "Build the tests" ON)
