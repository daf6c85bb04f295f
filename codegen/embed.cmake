# codegen/embed.cmake — writes INTO, a C++ file with the text of every device file: cmake -D ROOT= -D INTO= -P
#
# A file is named by its path from ROOT, the repository, which is how device files include each other. Files of the
# folder emulated are in a separate list, which no GPU's compiler gets.
file(GLOB_RECURSE all RELATIVE ${ROOT} ${ROOT}/codegen/cuda/*.cuh ${ROOT}/codegen/cuda/emulated/*.h)
list(SORT all)
set(usual ${all})
list(FILTER usual EXCLUDE REGEX ^codegen/cuda/emulated/)
set(emulated ${all})
list(FILTER emulated INCLUDE REGEX ^codegen/cuda/emulated/)

# Writes the two functions of a list of files: one returns the files, the other the digest of all of them.
function(write_list name)
  set(texts "")
  set(digests "")
  foreach(file IN LISTS ARGN)
    file(READ ${ROOT}/${file} text)
    file(SHA256 ${ROOT}/${file} digest)
    string(APPEND digests "${file} ${digest}\n")
    string(APPEND texts "    {\"${file}\", R\"cuda(${text})cuda\"},\n")
  endforeach()
  string(SHA256 digest "${digests}")
  file(APPEND ${INTO} "
std::span<const Header> ${name}() {
  static constexpr Header all[] = {
${texts}  };
  return all;
}

std::string_view ${name}_digest() { return \"${digest}\"; }
")
endfunction()

file(WRITE ${INTO} "#include \"codegen/cuda/headers.h\"

namespace attune::codegen {
")
write_list(headers ${usual})
write_list(emulated_headers ${emulated})
file(APPEND ${INTO} "
}  // namespace attune::codegen
")
