# tools/embed_results.cmake — writes INTO, a C++ file with the result files of GPUs as text: cmake -D ROOT= -D INTO= -P
file(GLOB files ${ROOT}/docs/results/gpu-*.jsonl)
list(SORT files)
set(texts "")
foreach(path IN LISTS files)
  get_filename_component(name ${path} NAME)
  # A string literal has at most 64 KB in some compilers, and a file has less.
  file(READ ${path} text)
  string(APPEND texts "    {\"${name}\", R\"rows(${text})rows\"},\n")
endforeach()
file(WRITE ${INTO} "#include \"tools/explain/support_rows.h\"

namespace attune::tools {

std::span<const ResultFile> result_files() {
  static constexpr ResultFile all[] = {
${texts}  };
  return all;
}

}  // namespace attune::tools
")
