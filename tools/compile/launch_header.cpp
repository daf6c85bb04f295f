// tools/compile/launch_header.cpp — a C and C++ header that says how to launch a GPU kernel without attune
#include "tools/compile/launch_header.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <fmt/format.h>
#include <string_view>

#include "codegen/ceil_div.h"
#include "codegen/choose/gpu_element.h"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/headers.h"
#include "codegen/source/source_text.h"

namespace attune::tools {
namespace {

constexpr std::string_view guard = R"(#ifndef ATTUNE_LAUNCH
#define ATTUNE_LAUNCH
#if defined(__cplusplus)
#define ATTUNE_ALIGNED(bytes) alignas(bytes)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define ATTUNE_ALIGNED(bytes) _Alignas(bytes)
#else
#define ATTUNE_ALIGNED(bytes) __attribute__((aligned(bytes)))
#endif
/* fails to compile where the condition does not hold */
#define ATTUNE_REQUIRE(name, condition) typedef char name[(condition) ? 1 : -1]
)";

/// The structs of args.cuh that a launch of a forward needs; a struct comes after those of its members.
constexpr std::array<std::string_view, 13> structs{"Numbers", "PageTable",   "Entries",    "TensorMap", "Strided",
                                                   "Rows",    "ForwardArgs", "DecodeArgs", "CutTile",   "MlaArgs",
                                                   "Further", "KeyParts",    "CoverArgs"};
/// Those with members that only some calls have.
constexpr std::string_view further_structs = R"(
struct attune_forward_args_further { struct attune_forward_args args; ATTUNE_ALIGNED(64) struct attune_further further; };
struct attune_forward_args_in_parts { struct attune_forward_args_further further; ATTUNE_ALIGNED(64) struct attune_key_parts parts; };
struct attune_decode_args_further { struct attune_decode_args args; struct attune_further further; };
struct attune_mla_args_further { struct attune_mla_args args; ATTUNE_ALIGNED(64) struct attune_further further; };
)";

/// ForwardArgs is attune_forward_args.
std::string c_name(std::string_view name) {
  std::string out = "attune";
  for (const char c : name) {
    if (std::isupper(static_cast<unsigned char>(c))) out += '_';
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

/// A line of a struct of args.cuh in the C that C99, C11 and C++ share: members have no initial values.
std::string c_line(std::string_view line) {
  std::string_view code = line.substr(0, line.find("//")), comment = line.substr(code.size());
  code.remove_prefix(std::min(code.find_first_not_of(' '), code.size()));
  comment.remove_prefix(std::min(comment.find_first_not_of("/< "), comment.size()));
  if (code.starts_with("alignas(")) code.remove_prefix(code.find(' ') + 1);
  const std::string_view type = code.substr(0, code.find_first_of(" *"));
  std::string out(line.substr(0, line.find_first_not_of(' ')));
  if (std::ranges::find(structs, type) != structs.end())
    out += "struct " + c_name(type);
  else
    out += type == "Stored" ? "int" : type;
  const std::string_view rest = code.substr(type.size(), code.find_first_of("=;") - type.size());
  out += rest.substr(0, rest.find_last_not_of(' ') + 1);
  if (!code.empty()) out += comment.empty() ? ";" : "; ";
  return comment.empty() ? out : fmt::format("{}/* {} */", out, comment);
}

/// The struct of args.cuh in C, after what is said of it there. What it derives from is its first member.
std::string c_struct(std::string_view name) {
  const auto args = std::ranges::find(codegen::headers(), "codegen/cuda/contract/args.cuh", &codegen::Header::name);
  std::string about, out;
  for (std::string_view rest = args->text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (!out.empty()) {
      if (line == "};") return about + out + "};\n";
      out += c_line(line) + '\n';
    } else if (line.starts_with("///")) {
      about += c_line(line) + '\n';
    } else if (const bool aligned = line.starts_with("struct alignas(64) ");
               line.starts_with("struct ") && line.substr(aligned ? 19 : 7).starts_with(fmt::format("{} ", name))) {
      out = fmt::format("struct {} {{\n", c_name(name));
      for (const std::string_view base : {"Entries", "DecodeArgs"})
        if (line.ends_with(fmt::format(" : {} {{", base))) {
          const std::string type = c_name(base);
          out += fmt::format("  struct {} {};\n", type, type.substr(7, type.find("_args") - 7));
        }
      if (aligned) out += "  ATTUNE_ALIGNED(64)\n";
    } else if (!line.starts_with("template ")) {
      about.clear();
    }
  }
  throw Bug(fmt::format("args.cuh has no struct {}", name));
}

std::string upper(std::string text) {
  for (char& c : text) c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::toupper(c)) : '_';
  return text;
}

/// A line that stops the header from compiling if the struct's size differs from the kernel's.
std::string required(const std::string& name, std::size_t bytes) {
  return fmt::format("ATTUNE_REQUIRE({0}_size, sizeof(struct {0}) == {1});\n", name, bytes);
}

std::string user_struct(const Launch& launch, const std::string& name) {
  const ir::Signature signature = codegen::source_signature(launch.mod);
  std::string out = fmt::format("struct {} {{\n", name);
  for (std::size_t i = 0; i < launch.mod.captures.size(); ++i) {
    const auto& slot = launch.mod.captures[i];
    out += fmt::format("  struct {{ const void* data;{} }} {}; /* {} */\n",
                       slot.rank ? fmt::format(" {} stride[{}]; int last[{}];", launch.offsets64 ? "long long" : "int",
                                               slot.rank, slot.rank)
                                 : "",
                       signature.captures[i].name, attune::name_of(slot.dtype));
  }
  for (const auto& param : signature.params)
    out += fmt::format("  {} {};\n", param.type == ir::Type::F32 ? "float" : "int", param.name);
  out += fmt::format("  float {}; /* of q . k */\n}};\n", codegen::source_scale);
  return out + required(name, codegen::source_bytes(launch.mod, launch.offsets64));
}

/// How the companion is launched, if these launches need it.
std::string beside(const Launch& launch, const codegen::Companion& what) {
  const codegen::KernelPlan& plan = launch.choice->plan;
  const int chunk = codegen::gpu_element(plan.spec.dtype).chunk();
  if (&what == &codegen::combine_mla)
    return fmt::format("then     the kernel `{}` with the same arguments, {} blocks for each block, {} threads\n",
                       what.name, combine_mla_blocks, what.threads);
  if (&what == &codegen::lists_along_kv && launch.listed)
    return fmt::format("\ntiles    lists that the kernel `{}` of the same Mod writes first", what.name);
  if (&what == &codegen::gather_pages && plan.tile.gathered)
    return fmt::format(
        "\nbefore   the kernel `{}`, {} threads, a grid of ceil(kv_len / {}) x key heads x batch, with GatherArgs "
        "of args.cuh: k, v and their\n"
        "         maps are then its copies, [batch][key head][kv_len][d], and page_table is zero",
        what.name, what.threads, gather_rows);
  if (&what == &codegen::transpose_v && plan.tile.transposed)
    return fmt::format("\nbefore   the kernel `{}`, {} threads, a block for each {} keys of a head, with "
                       "TransposeArgs of args.cuh: {} rows for each block\n"
                       "         are where v_map is to be, over [{}][key head][row][{}] in boxes of as many",
                       what.name, what.threads, plan.tile.n, ceil_div(plan.tile.n, chunk) * plan.tile.dv,
                       plan.spec.packed ? "1" : "batch", chunk);
  return {};
}

std::string how(const Launch& launch) {
  if (!launch.choice)
    return "grid     ceil(q_len / TILE_Q) x tile_heads x tile_batches, before the kernel that reads the lists\n"
           "arguments struct attune_cover_args, then the user's struct";
  const codegen::KernelChoice& c = *launch.choice;
  const codegen::KernelPlan& plan = c.plan;
  const codegen::Tile& tile = plan.tile;
  const bool cuts = codegen::cuts_keys(*plan.kernel), ordered = plan.kernel->persistent && plan.spec.packed && !cuts;
  const int chunk = codegen::gpu_element(plan.spec.dtype).chunk();
  const std::string sets = tile.heads == 1 ? "q_heads" : fmt::format("q_heads / group * ceil(group / {})", tile.heads);
  const std::string per_sm = c.blocks_of_sm == 1 ? "one block per SM" : fmt::format("{} blocks per SM", c.blocks_of_sm);
  std::string out = fmt::format("grid     {}: tiles = {}\n",
                                cuts                      ? per_sm + "; blocks share all tiles"
                                : tile.in_parts           ? per_sm + ", at most tiles * count"
                                : plan.kernel->persistent ? per_sm + ", at most tiles"
                                                          : "tiles",
                                ordered ? fmt::format("order_count * {}", sets)
                                        : fmt::format("ceil(q_len / {}) * {} * batch", tile.queries(), sets));
  const char* const further = plan.tile.in_parts ? "_in_parts" : plan.further() ? "_further" : "";
  if (plan.kernel->args == codegen::ArgsKind::mla)
    return out + fmt::format("clusters of {} blocks\n"
                             "parts    2 * blocks * {} floats\n"
                             "maps     q_map in boxes of {} rows, k_map of {}; each {} columns wide, swizzled by 128 "
                             "bytes\n"
                             "{}"
                             "arguments struct attune_mla_args{}, then the user's struct",
                             tile.cluster, tile.m * (tile.dv + part_floats), c.boxes->q, c.boxes->k, chunk,
                             beside(launch, codegen::combine_mla), further);
  if (cuts)
    return out + fmt::format("parts    2 * blocks * q_len * {} floats; arrivals: a zeroed unsigned for each block\n"
                             "arguments struct attune_decode_args{}, then the user's struct{}",
                             tile.heads * (tile.dv + part_floats), further, beside(launch, codegen::lists_along_kv));
  out += fmt::format("arguments struct attune_forward_args{}, then the user's struct\n", further);
  const char* const batch = plan.spec.packed ? "1" : "batch";
  out += c.boxes ? fmt::format("maps     q_map in boxes of {} rows, k_map of {}, v_map of {}, o_map of {}; each {} "
                               "columns wide, swizzled by 128 bytes,\n"
                               "         over [{}][head][position][d] from the last dimension on",
                               c.boxes->q, c.boxes->k, c.boxes->v, c.boxes->o, chunk, batch)
                 : std::string("maps     none: the tensor maps may be left zero");
  if (c.boxes && tile.heads > 1)
    out += fmt::format("\n         q_map and o_map over [{}][key head][position][head of it][d], boxes of {} and {} "
                       "positions, {} heads of each",
                       batch, c.boxes->q / tile.heads, c.boxes->o / tile.heads, tile.heads);
  if (c.boxes && plan.spec.cache.paged() && !plan.tile.gathered)
    out += "; pages of the pool are the batch of k_map and v_map";
  out += beside(launch, codegen::gather_pages) + beside(launch, codegen::transpose_v);
  if (tile.in_parts)
    out += fmt::format("\nthen     the kernel `{}` with the same arguments, ceil(rows / {}) blocks, {} threads",
                       codegen::combine_parts.name, rows_of_copy, codegen::combine_parts.threads);
  if (c.counts_tiles) out += "\nnext     points to a zeroed unsigned";
  if (ordered)
    out += fmt::format("\norder    each tile of {} queries of every sequence once, the longest main loops first",
                       tile.queries());
  return out + beside(launch, codegen::lists_along_kv);
}

}  // namespace

std::string launch_header(const Launch& launch) {
  const std::string prefix = upper("attune_" + launch.name), user = "attune_user_" + launch.name;
  std::string id = user;
  std::replace_if(
      id.begin(), id.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  std::string about = launch.mod.text() + "target   " + launch.target + "\n" + how(launch);
  for (std::size_t at = 0; (at = about.find("*/", at)) != std::string::npos; ++at) about.insert(at + 1, " ");
  std::string out = fmt::format("/* {}: a kernel made by attune, and how to launch it\n{}\n*/\n{}", launch.name, about,
                                guard);
  for (const std::string_view name : structs) out += c_struct(name);
  out += further_structs;
  out += required("attune_forward_args", sizeof(ForwardArgs)) + required("attune_decode_args", sizeof(DecodeArgs)) +
         required("attune_forward_args_further", sizeof(Further<ForwardArgs>)) +
         required("attune_forward_args_in_parts", sizeof(InParts<ForwardArgs>)) +
         required("attune_decode_args_further", sizeof(Further<DecodeArgs>)) +
         required("attune_mla_args", sizeof(MlaArgs)) + required("attune_mla_args_further", sizeof(Further<MlaArgs>)) +
         required("attune_cover_args", sizeof(CoverArgs));
  out += "#endif\n\n";
  out += fmt::format("#define {}_SYMBOL \"{}\"\n", prefix, launch.symbol);
  if (launch.choice)
    out += fmt::format("#define {0}_THREADS {1}\n#define {0}_SHARED_BYTES {2}\n#define {0}_TILE_Q {3}\n"
                       "#define {0}_TILE_KV {4}\n",
                       prefix, launch.choice->threads, launch.choice->shared_bytes, launch.choice->plan.tile.queries(),
                       launch.choice->plan.tile.n);
  else
    out += fmt::format("#define {0}_THREADS {1}\n#define {0}_SHARED_BYTES 0\n", prefix, cover_threads);
  return out + user_struct(launch, id);
}

}  // namespace attune::tools
