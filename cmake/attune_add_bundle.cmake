# cmake/attune_add_bundle.cmake — attune_add_bundle(): kernels that are built with a program, and put into it

# attune_add_bundle(NAME MANIFEST FILE), or attune_add_bundle(NAME COMPILE ARGUMENT...) with those of attune compile:
# builds NAME.attune in this build folder. NAME is also a library that holds its bytes: a program that links it has
# `extern "C" const std::byte NAME_begin[], NAME_end[]` for offline::load_bytes.
function(attune_add_bundle name)
  cmake_parse_arguments(PARSE_ARGV 1 of "" "MANIFEST" "COMPILE")
  if(of_UNPARSED_ARGUMENTS OR NOT (of_MANIFEST OR of_COMPILE))
    message(FATAL_ERROR "attune_add_bundle(${name}): give MANIFEST and a file, or COMPILE and arguments of attune compile")
  endif()
  if(NOT TARGET attune::cli)
    message(FATAL_ERROR "attune_add_bundle(${name}): attune was built without its command line, which compiles bundles")
  endif()
  set(arguments ${of_COMPILE})
  if(of_MANIFEST)
    cmake_path(ABSOLUTE_PATH of_MANIFEST)
    list(APPEND arguments --manifest ${of_MANIFEST})
  endif()
  set(bundle ${CMAKE_CURRENT_BINARY_DIR}/${name}.attune)
  add_custom_command(OUTPUT ${bundle}
    COMMAND attune::cli compile ${arguments} -o ${bundle} --quiet
    DEPENDS $<TARGET_FILE:attune::cli> ${of_MANIFEST}
    COMMENT "Compiling kernels into ${name}.attune"
    VERBATIM)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.attune.cpp)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
asm(R"(
  .section .rodata
  .balign 64
  .global @name@_begin, @name@_end
  .hidden @name@_begin, @name@_end
@name@_begin:
  .incbin "@bundle@"
@name@_end:
  .byte 0
  .section .note.GNU-stack,"",%progbits
  .text
)");
]])
  add_library(${name} OBJECT ${source})
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS ${bundle})
  # No compiler cache: ccache does not see what .incbin reads where it takes dependencies from the compiler, and would
  # hand out the bytes of an older bundle.
  set_target_properties(${name} PROPERTIES ATTUNE_BUNDLE ${bundle} CXX_COMPILER_LAUNCHER "")
endfunction()
