# cmake/install.cmake — what is installed: the libraries, include/attune, the command line, and how builds find them
if(NOT ATTUNE_INSTALL)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY ATTUNE_ROOMS)
install(TARGETS attune ${rooms} EXPORT attune
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(ATTUNE_SHARED)
  install(TARGETS attune_c EXPORT attune LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  file(RELATIVE_PATH ATTUNE_INCLUDE_FROM_LIB ${CMAKE_INSTALL_FULL_LIBDIR} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
  configure_file(c/attune.pc.in ${PROJECT_BINARY_DIR}/attune.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/attune.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
if(ATTUNE_TOOLS)
  install(TARGETS attune_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# The package has no dependencies to find, so the exported targets are its whole config.
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/attune)
install(EXPORT attune NAMESPACE attune:: DESTINATION ${package} FILE attune-config.cmake)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attune-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attune-config-version.cmake DESTINATION ${package})
