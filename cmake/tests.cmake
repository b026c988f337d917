# SPDX-License-Identifier: MIT
#
# Every tests/<label>/test_*.c is a program and a ctest of that label. Exit status 77 means skipped.
# docs/testing.md says what each label is for.
set(test_labels api unit conform sim model stress fault)
set(test_timeout_s 180)
set(test_timeout_s_stress 300)
set(test_timeout_s_fault 300)
set(test_timeout_s_model 180)
set(test_timeout_s_sim 120)

file(GLOB support_sources CONFIGURE_DEPENDS tests/support/*.c)
add_library(tarn_test_support STATIC ${support_sources})
target_include_directories(tarn_test_support PUBLIC tests src)
target_link_libraries(tarn_test_support PUBLIC tarn_build tarn_static)
# Parts of the command are tested like those of the library; they are included as "tools/NAME.h".
target_include_directories(tarn_test_support PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(tarn_test_support PUBLIC tarn_tools)

# Stand-ins for libcuda, one a driver version, that tests of the cuda port load where there is no GPU.
if(EXISTS ${PROJECT_SOURCE_DIR}/tests/support/fake_cuda/fake_cuda.c)
  foreach(version 6050 10000 11030 13000)
    add_library(fake_cuda_${version} MODULE tests/support/fake_cuda/fake_cuda.c)
    target_compile_definitions(fake_cuda_${version} PRIVATE FAKE_CUDA_VERSION=${version})
    target_include_directories(fake_cuda_${version} PRIVATE include src tests)
    target_link_libraries(fake_cuda_${version} PRIVATE tarn_build ${tarn_system_libraries})
    target_link_options(fake_cuda_${version} PRIVATE -Wl,-soname,libcuda.so.1)
    set_target_properties(fake_cuda_${version} PROPERTIES
      PREFIX "" LIBRARY_OUTPUT_DIRECTORY tests/support)
    add_dependencies(tarn_test_support fake_cuda_${version})
  endforeach()
  target_compile_definitions(tarn_test_support PRIVATE
    TARN_FAKE_CUDA_PREFIX="${PROJECT_BINARY_DIR}/tests/support/fake_cuda_")
endif()

add_library(fake_peer MODULE tests/support/fake_peer/fake_peer.c)
target_link_libraries(fake_peer PRIVATE tarn_build)
set_target_properties(fake_peer PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY tests/support)
add_dependencies(tarn_test_support fake_peer)

# A thread sanitizer whose shadow map does not fit the kernel's address randomisation dies at start
# with "unexpected memory mapping"; without randomisation it runs. Where setarch is not allowed
# (some containers) the test is started as it is.
set(test_launcher "")
if(TARN_PROFILE STREQUAL "tsan")
  execute_process(COMMAND setarch -R true RESULT_VARIABLE setarch_result OUTPUT_QUIET ERROR_QUIET)
  if(setarch_result EQUAL 0)
    set(test_launcher setarch -R)
  endif()
endif()

# Looking for leaks at the end of a process takes 4 s on 64-bit ARM, however small the process is:
# there, tests that start dozens of them do without. Elsewhere they do not.
set(tests_of_many_processes unit.tool unit.heap_config unit.cuda_driver unit.cuda_port
  unit.cuda_entries unit.replay unit.plan_tool)
# The longest ones begin first, so that none is left alone at the end.
set(test_cost_stress 3)
set(test_cost_fault 2)
set(test_cost_sim 1)
set(asan_options detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1)
set(ubsan_options print_stacktrace=1)
set(tsan_options second_deadlock_stack=1:allocator_may_return_null=1)

# tarn_add_test(NAME LABEL COMMAND...)
function(tarn_add_test name label)
  add_test(NAME ${name} COMMAND ${test_launcher} ${ARGN})
  set(timeout_s ${test_timeout_s})
  if(DEFINED test_timeout_s_${label})
    set(timeout_s ${test_timeout_s_${label}})
  endif()
  if(name IN_LIST tests_of_many_processes AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    string(APPEND asan_options :detect_leaks=0)
  endif()
  if(DEFINED test_cost_${label})
    set_tests_properties(${name} PROPERTIES COST ${test_cost_${label}})
  endif()
  math(EXPR timeout_s "${timeout_s} * ${TARN_TIMEOUT_SCALE}")
  set_tests_properties(${name} PROPERTIES
    LABELS ${label} SKIP_RETURN_CODE 77 TIMEOUT ${timeout_s}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    ENVIRONMENT "TARN_TEST_BUILD_DIR=${PROJECT_BINARY_DIR};ASAN_OPTIONS=${asan_options};\
UBSAN_OPTIONS=${ubsan_options};TSAN_OPTIONS=${tsan_options}")
endfunction()

foreach(label IN LISTS test_labels)
  file(GLOB test_sources CONFIGURE_DEPENDS tests/${label}/test_*.c)
  # What the programs of one label share, such as the topics of the conformance suite.
  file(GLOB shared_sources CONFIGURE_DEPENDS tests/${label}/${label}_*.c)
  foreach(source IN LISTS test_sources)
    get_filename_component(program ${source} NAME_WE)
    string(REPLACE "test_" "" name ${program})
    add_executable(${label}_${program} ${source} ${shared_sources})
    target_link_libraries(${label}_${program} PRIVATE tarn_test_support)
    set_target_properties(${label}_${program} PROPERTIES
      OUTPUT_NAME ${program} RUNTIME_OUTPUT_DIRECTORY tests/${label})
    tarn_add_test(${label}.${name} ${label} $<TARGET_FILE:${label}_${program}>)
    if(label STREQUAL "conform")
      # The same program on a real GPU; it reports itself as skipped where there is none.
      tarn_add_test(gpu.${name} gpu ${CMAKE_COMMAND} -E env TARN_TEST_DEVICE=cuda:0
        $<TARGET_FILE:${label}_${program}>)
      set_tests_properties(gpu.${name} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endforeach()

# Captures are the same on every heap: their tests run on those of the driver's own allocations, too.
foreach(setting PRESET=exact-pool PRESET=power-buckets ROUNDING=exact)
  string(REGEX REPLACE ".*=" "" setting_name ${setting})
  set(tests_of_captures unit.capture unit.capture_launch unit.capture_defects
    unit.capture_unsure unit.capture_hold unit.arena stress.capture_threads)
  if(setting MATCHES PRESET) # they take their time, and the third one has nothing of its own
    list(APPEND tests_of_captures fault.capture_fault)
  endif()
  foreach(test IN LISTS tests_of_captures)
    string(REPLACE "." "_test_" program ${test})
    string(REGEX REPLACE "[.].*" "" label ${test})
    tarn_add_test(${test}.${setting_name} ${label} ${CMAKE_COMMAND} -E env TARN_${setting}
      $<TARGET_FILE:${program}>)
  endforeach()
endforeach()

# Each tests/fuzz/fuzz_*.c is a program of libFuzzer, in the fuzz profile only.
if(TARN_PROFILE STREQUAL "fuzz")
  file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
  foreach(source IN LISTS fuzz_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE tarn_test_support)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests/fuzz)
  endforeach()
endif()

# tarn's declarations of the CUDA driver against the toolkit's own, where there is a toolkit.
if(TARN_CUDA_INCLUDE_DIR AND TARGET unit_test_cuda_abi)
  target_compile_definitions(unit_test_cuda_abi PRIVATE TARN_HAVE_CUDA_H=1)
  target_include_directories(unit_test_cuda_abi SYSTEM PRIVATE ${TARN_CUDA_INCLUDE_DIR})
endif()

foreach(source IN LISTS example_sources)
  get_filename_component(name ${source} NAME_WE)
  tarn_add_test(example.${name} example $<TARGET_FILE:example_${name}>)
endforeach()

tarn_add_test(api.headers api ${PROJECT_SOURCE_DIR}/tests/api/headers)
tarn_add_test(api.install api ${PROJECT_SOURCE_DIR}/tests/api/install)

# Each check of `make check` must fail on its known-bad samples.
find_program(TARN_PYTHON python3)
if(TARN_PYTHON)
  file(GLOB checks RELATIVE ${PROJECT_SOURCE_DIR}/tests/checks CONFIGURE_DEPENDS tests/checks/*)
  foreach(check IN LISTS checks)
    tarn_add_test(checks.${check} checks
      ${TARN_PYTHON} ${PROJECT_SOURCE_DIR}/scripts/check/selftest --only ${check})
  endforeach()
endif()
