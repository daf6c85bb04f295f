# codegen/embed.cmake — writes INTO, a C++ file that holds the device files of FROM as text: cmake -D FROM= -D INTO= -P
file(GLOB files ${FROM}/*.cuh)
list(SORT files)
set(texts "")
set(digests "")
foreach(file IN LISTS files)
  cmake_path(GET file FILENAME name)
  file(READ ${file} text)
  file(SHA256 ${file} digest)
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
