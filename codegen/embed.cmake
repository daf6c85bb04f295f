# codegen/embed.cmake — writes INTO, a C++ file with the text of every device file: cmake -D ROOT= -D INTO= -P
#
# A file is named by its path from ROOT, the repository, which is how device files include each other.
file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/codegen/cuda/*.cuh)
list(SORT files)
set(texts "")
set(digests "")
foreach(name IN LISTS files)
  file(READ ${ROOT}/${name} text)
  file(SHA256 ${ROOT}/${name} digest)
  string(APPEND digests "${name} ${digest}\n")
  string(APPEND texts "    {\"${name}\", R\"cuda(${text})cuda\"},\n")
endforeach()
string(SHA256 digest "${digests}")
file(WRITE ${INTO} "#include \"codegen/headers.h\"

namespace attune::codegen {

std::span<const Header> headers() {
  static constexpr Header all[] = {
${texts}  };
  return all;
}

std::string_view headers_digest() { return \"${digest}\"; }

}  // namespace attune::codegen
")
