# SPDX-License-Identifier: MIT
#
# Installation: headers, libraries, pkg-config file, CMake package (tarn::tarn, tarn::tarn_static).
install(DIRECTORY include/tarn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS ${tarn_targets} EXPORT tarnTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tarn)
install(EXPORT tarnTargets NAMESPACE tarn:: DESTINATION ${package_dir})
configure_package_config_file(cmake/tarnConfig.cmake.in tarnConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(tarnConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tarnConfig.cmake ${PROJECT_BINARY_DIR}/tarnConfigVersion.cmake
  DESTINATION ${package_dir})

# The prefix in the .pc file is relative to the file itself, so an installation can be moved.
file(RELATIVE_PATH tarn_pc_prefix
  /root_/${CMAKE_INSTALL_LIBDIR}/pkgconfig /root_)
configure_file(cmake/tarn.pc.in tarn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tarn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
