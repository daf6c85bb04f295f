# playground/core.cmake — attune_playground_core(): which files of the runtime the playground is made of

# attune_playground_core(ROOT INTO): the runtime's files that the playground's includes lead to, x.h standing for x.cpp,
# with engines/cuda/no_cuda.cpp for the CUDA engine and its platform, and files that have no header of their own. Read
# from the sources, so that a file that moves is found where it is. WebAssembly is built of these, and natively a test
# program, which does not link if a file is missing.
function(attune_playground_core root into)
  file(GLOB open ${root}/playground/*.cpp)
  set(seen ${open})
  set(core ${root}/runtime/engines/cuda/no_cuda.cpp ${root}/runtime/attention/arrays.cpp
    ${root}/runtime/engines/cover/summary.cpp ${root}/runtime/machine/npy.cpp)
  while(open)
    list(POP_FRONT open file)
    if(file MATCHES "^${root}/runtime/.*[.]cpp$")
      list(APPEND core ${file})
    endif()
    file(STRINGS ${file} lines REGEX "^#include [\"<]")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include [\"<]([^\">]+)[\">].*" "\\1" header "${line}")
      string(REGEX REPLACE "[.]h$" ".cpp" source "${header}")
      foreach(reached ${root}/${header} ${root}/include/${header} ${root}/${source})
        if(EXISTS ${reached} AND NOT reached IN_LIST seen AND NOT reached MATCHES "/(engines/cuda|platform)/.*[.]cpp$")
          list(APPEND seen ${reached})
          list(APPEND open ${reached})
        endif()
      endforeach()
    endforeach()
  endwhile()
  set(${into} ${core} PARENT_SCOPE)
endfunction()
