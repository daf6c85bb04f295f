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
  set_target_properties(attune_cli PROPERTIES EXPORT_NAME cli)
  install(TARGETS attune_cli EXPORT attune RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  set(pages ${PROJECT_BINARY_DIR}/tools)
  install(FILES ${pages}/attune.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${pages}/attune.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME attune)
  install(FILES ${pages}/_attune DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/attune.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples PATTERN rust EXCLUDE PATTERN CMakeLists.txt EXCLUDE)
# The one example that is a project of its own.
install(FILES examples/runtime/CMakeLists.txt DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/runtime)
install(FILES README.md LICENSE CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${ATTUNE_LICENCES} DESTINATION ${CMAKE_INSTALL_DOCDIR})
# What README.md links to.
install(DIRECTORY docs gallery DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The package has no dependencies to find: its targets and a function are all there is.
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/attune)
install(EXPORT attune NAMESPACE attune:: DESTINATION ${package} FILE attune-targets.cmake)
install(FILES cmake/attune-config.cmake cmake/attune_add_bundle.cmake DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attune-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attune-config-version.cmake DESTINATION ${package})

# ./dev package makes an archive and a Debian package of what is installed, and compresses them itself, once.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR TGZ DEB)
  set(CPACK_PACKAGE_VENDOR "attune")
  set(CPACK_PACKAGE_CONTACT "The attune authors")
  set(CPACK_STRIP_FILES ON)
  # Without the component of the Python package, which is a wheel of its own.
  set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};attune;Unspecified;/")
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_COMPRESSION_TYPE none)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36), libstdc++6 (>= 12)")
  # What a C++ program links besides: libattune.so and the command line have it in them.
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "llvm-19-dev, libzstd-dev, zlib1g-dev")
  include(CPack)
endif()
