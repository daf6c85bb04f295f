// runtime/machine/archive.cpp — one tensor of a file: .npy, or by its name of a .npz archive or a .safetensors file
#include "runtime/machine/archive.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <system_error>
#include <vector>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/parse.h"

namespace attune::runtime {
namespace {

constexpr std::size_t width = 16;

/// [i][byte]: what a byte becomes when i further bytes have followed it.
constexpr auto tables = [] {
  std::array<std::array<std::uint32_t, 256>, width> out{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0xEDB88320u : 0u);
    out[0][byte] = rest;
  }
  for (std::size_t i = 1; i < width; ++i)
    for (std::size_t byte = 0; byte < 256; ++byte)
      out[i][byte] = out[i - 1][byte] >> 8 ^ out[0][out[i - 1][byte] & 255];
  return out;
}();

/// Four bytes, when N further ones have followed.
template <std::size_t N>
std::uint32_t followed(std::uint32_t word) {
  return tables[N + 3][word & 255] ^ tables[N + 2][word >> 8 & 255] ^ tables[N + 1][word >> 16 & 255] ^
         tables[N][word >> 24];
}

}  // namespace

std::uint32_t crc32(std::string_view bytes, std::uint32_t before) {
  std::uint32_t rest = ~before;
  for (; bytes.size() >= width; bytes.remove_prefix(width)) {
    std::array<std::uint32_t, 4> words;
    std::memcpy(words.data(), bytes.data(), sizeof words);
    rest = followed<12>(words[0] ^ rest) ^ followed<8>(words[1]) ^ followed<4>(words[2]) ^ followed<0>(words[3]);
  }
  for (const char c : bytes) rest = rest >> 8 ^ tables[0][(rest ^ static_cast<unsigned char>(c)) & 255];
  return ~rest;
}

namespace {

namespace fs = std::filesystem;

/// A path, and the name of a tensor in it.
struct AskedArray {
  std::string path;
  std::optional<std::string> name;
};

std::optional<AskedArray> asked(const std::string& path, std::string_view ending) {
  if (path.ends_with(ending)) return AskedArray{path, std::nullopt};
  const std::size_t at = path.find(std::string(ending) + ":");
  if (at == std::string::npos) return std::nullopt;
  return AskedArray{path.substr(0, at + ending.size()), path.substr(at + ending.size() + 1)};
}

/// A file whose parts are read from anywhere in it.
class Archive {
 public:
  Archive(const std::string& path, const std::string& called) : path_(path), called_(called) {
    std::error_code failed;
    const fs::file_status status = fs::status(path, failed);
    if (status.type() == fs::file_type::not_found)
      throw refuse("file-missing", "there is no such file", fmt::format("{} does not exist", path), "check the path");
    if (!fs::is_regular_file(status))
      throw refuse("file-kind", "this is not a regular file", path + " is not a plain file", "name a plain file");
    in_.open(path, std::ios::binary);
    bytes_ = fs::file_size(path, failed);
    if (!in_ || failed)
      throw refuse("file-unreadable", "the file cannot be read", failed ? failed.message() : "it cannot be opened",
                   "check its permissions");
  }

  Error refuse(std::string code, std::string problem, std::string why, std::string fix) const {
    return Error(std::move(code), std::move(problem), {.name = called_}, std::move(why), std::move(fix));
  }
  Error damaged(const std::string& why) const {
    return refuse("archive-damaged", "the archive cannot be read", why, "write the file again");
  }

  std::uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  const std::string& called() const { return called_; }

  std::string part(std::uint64_t begin, std::uint64_t count) {
    if (begin > bytes_ || count > bytes_ - begin)
      throw damaged(fmt::format("it refers to bytes {} to {}, and it has {}", begin, begin + count, bytes_));
    std::string out(count, '\0');
    in_.clear();
    in_.seekg(static_cast<std::streamoff>(begin));
    if (count && !in_.read(out.data(), static_cast<std::streamsize>(count)))
      throw refuse("file-unreadable", "the file cannot be read", "it ended while it was read", "read it again");
    return out;
  }

  /// The name that was asked for, or the only one.
  std::size_t chosen(const AskedArray& asked, const std::vector<std::string>& names) const {
    if (!asked.name && names.size() == 1) return 0;
    constexpr std::size_t most = 20;
    const std::vector<std::string> some(names.begin(),
                                        names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), most)));
    std::string all = names.empty() ? "it holds none" : fmt::format("it holds {}", fmt::join(some, ", "));
    if (names.size() > most) all += fmt::format(" and {} more", names.size() - most);
    if (!asked.name)
      throw refuse("archive-name", "the file holds several tensors, or none", all,
                   names.empty() ? "name another file" : fmt::format("write {}:{}", path_, names[0]));
    const auto found = std::ranges::find(names, *asked.name);
    if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
    const auto near = ir::nearest(*asked.name, names);
    throw refuse("archive-name", fmt::format("the file holds no tensor `{}`", *asked.name), all,
                 near ? fmt::format("did you mean {}?", *near) : "name one of these");
  }

 private:
  std::string path_, called_;
  std::ifstream in_;
  std::uint64_t bytes_ = 0;
};

/// A little-endian number within bytes.
template <class T>
T at(const std::string& bytes, std::size_t offset) {
  T out;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

// ---- .npz: a .zip archive of .npy files
// ------------------------------------------------------------------------------

struct ZipEntry {
  std::string name;
  std::uint16_t method = 0;
  std::uint32_t crc = 0;
  std::uint64_t bytes = 0, header = 0;
};

constexpr std::uint32_t full = std::numeric_limits<std::uint32_t>::max();

/// Sizes that do not fit 32 bits are 64-bit numbers of a further field, in this order.
void take_large(ZipEntry& entry, std::string_view extra, std::uint32_t size, std::uint32_t packed, std::uint32_t offset,
                const Archive& file) {
  while (extra.size() >= 4) {
    const std::string head(extra.substr(0, 4));
    const auto length = at<std::uint16_t>(head, 2);
    if (extra.size() < 4u + length) break;
    std::string numbers(extra.substr(4, length));
    extra.remove_prefix(4u + length);
    if (at<std::uint16_t>(head, 0) != 1) continue;
    std::size_t next = 0;
    for (const auto& [is_large, into] : {std::pair{size == full, &entry.bytes},
                                         {packed == full, static_cast<std::uint64_t*>(nullptr)},
                                         {offset == full, &entry.header}}) {
      if (!is_large) continue;
      if (next + 8 > numbers.size()) throw file.damaged("a large size is missing");
      if (into) *into = at<std::uint64_t>(numbers, next);
      next += 8;
    }
  }
}

std::vector<ZipEntry> zip_entries(Archive& file) {
  constexpr std::uint64_t end_size = 22, longest_comment = 65535;
  if (file.bytes() < end_size) throw file.damaged("it is too short for a .npz archive");
  const std::uint64_t tail_size = std::min(file.bytes(), end_size + longest_comment);
  const std::string tail = file.part(file.bytes() - tail_size, tail_size);
  const std::size_t end = tail.rfind(std::string("PK\5\6", 4), tail.size() - end_size);
  if (end == std::string::npos) throw file.damaged("a .npz archive ends with its directory, and there is none");
  std::uint64_t count = at<std::uint16_t>(tail, end + 10), size = at<std::uint32_t>(tail, end + 12),
                begin = at<std::uint32_t>(tail, end + 16);
  // Archives beyond 32 bits say where the larger form of this record is.
  if (const std::uint64_t place = file.bytes() - tail_size + end; place >= 20) {
    const std::string locator = file.part(place - 20, 20);
    if (locator.starts_with(std::string("PK\6\7", 4))) {
      const std::string large = file.part(at<std::uint64_t>(locator, 8), 56);
      if (!large.starts_with(std::string("PK\6\6", 4))) throw file.damaged("its directory is not where it should be");
      count = at<std::uint64_t>(large, 32);
      size = at<std::uint64_t>(large, 40);
      begin = at<std::uint64_t>(large, 48);
    }
  }
  const std::string directory = file.part(begin, size);
  std::vector<ZipEntry> out;
  std::size_t next = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    constexpr std::size_t head = 46;
    if (next + head > directory.size() || directory.compare(next, 4, "PK\1\2", 4) != 0)
      throw file.damaged(fmt::format("entry {} of its directory cannot be read", i));
    const auto packed = at<std::uint32_t>(directory, next + 20), plain = at<std::uint32_t>(directory, next + 24),
               offset = at<std::uint32_t>(directory, next + 42);
    const auto name = at<std::uint16_t>(directory, next + 28), extra = at<std::uint16_t>(directory, next + 30),
               comment = at<std::uint16_t>(directory, next + 32);
    if (next + head + name + extra + comment > directory.size())
      throw file.damaged(fmt::format("entry {} of its directory is cut off", i));
    ZipEntry entry{directory.substr(next + head, name), at<std::uint16_t>(directory, next + 10),
                   at<std::uint32_t>(directory, next + 16), plain, offset};
    take_large(entry, std::string_view(directory).substr(next + head + name, extra), plain, packed, offset, file);
    out.push_back(std::move(entry));
    next += head + name + extra + comment;
  }
  return out;
}

/// Checks all bytes of an entry before they are parsed, so that any changed bit is reported as damage.
void check_crc(Archive& file, const ZipEntry& entry, std::uint64_t begin) {
  constexpr std::uint64_t block = 1 << 18;
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < entry.bytes; done += block)
    crc = crc32(file.part(begin + done, std::min(block, entry.bytes - done)), crc);
  if (crc != entry.crc)
    throw file.damaged(fmt::format("the bytes of `{}` have the CRC-32 {:08x}, and its directory says {:08x}",
                                   entry.name, crc, entry.crc));
}

Owned read_npz(const AskedArray& asked, const std::string& called) {
  Archive file(asked.path, called);
  const std::vector<ZipEntry> entries = zip_entries(file);
  std::vector<std::string> names;
  for (const ZipEntry& entry : entries)
    names.push_back(entry.name.ends_with(".npy") ? entry.name.substr(0, entry.name.size() - 4) : entry.name);
  const ZipEntry& entry = entries[file.chosen(asked, names)];
  if (entry.method != 0)
    throw file.refuse("npz-compressed", fmt::format("`{}` is compressed", entry.name),
                      "compressed archives are not read", "write it with numpy.savez, not savez_compressed");
  const std::string head = file.part(entry.header, 30);
  if (!head.starts_with(std::string("PK\3\4", 4))) throw file.damaged("an entry is not where its directory says");
  const std::uint64_t begin = entry.header + 30 + at<std::uint16_t>(head, 26) + at<std::uint16_t>(head, 28);
  if (begin > file.bytes() || entry.bytes > file.bytes() - begin)
    throw file.damaged(fmt::format("`{}` would end past the end of the file", entry.name));
  check_crc(file, entry, begin);
  return read_npy(file.path(), called, {begin, entry.bytes});
}

// ---- .safetensors: a length, JSON, then data
// -------------------------------------------------------------------------

using Json = nlohmann::ordered_json;

struct Kind {
  std::string_view name;
  DType dtype;
};
constexpr std::array kinds{Kind{"F32", DType::f32},      Kind{"F16", DType::f16},     Kind{"BF16", DType::bf16},
                           Kind{"F64", DType::f64},      Kind{"I64", DType::i64},     Kind{"I32", DType::i32},
                           Kind{"I16", DType::i16},      Kind{"I8", DType::i8},       Kind{"U8", DType::u8},
                           Kind{"BOOL", DType::boolean}, Kind{"F8_E4M3", DType::e4m3}};

/// A JSON number that is whole and not negative.
std::uint64_t whole(const Json& value, const Archive& file) {
  if (!value.is_number_unsigned()) throw file.damaged("a shape or an offset is not a whole number of 0 or more");
  return value.get<std::uint64_t>();
}

Owned read_safetensors(const AskedArray& asked, const std::string& called) {
  Archive file(asked.path, called);
  if (file.bytes() < 8) throw file.damaged("it is too short for a .safetensors file");
  const auto length = at<std::uint64_t>(file.part(0, 8), 0);
  constexpr std::uint64_t longest = 100'000'000;  // the format's own limit
  if (length > std::min(longest, file.bytes() - 8))
    throw file.damaged(fmt::format("its header would take {} bytes", length));
  const Json header = Json::parse(file.part(8, length), nullptr, false);
  if (!header.is_object()) throw file.damaged("its header is not a JSON object");
  std::vector<std::string> names;
  for (const auto& [name, value] : header.items())
    if (name != "__metadata__") names.push_back(name);
  const std::string& name = names[file.chosen(asked, names)];
  const Json& entry = header[name];
  const auto has = [&](const char* key, Json::value_t type) {
    return entry.contains(key) && entry[key].type() == type;
  };
  if (!entry.is_object() || !has("dtype", Json::value_t::string) || !has("shape", Json::value_t::array) ||
      !has("data_offsets", Json::value_t::array) || entry["data_offsets"].size() != 2)
    throw file.damaged(fmt::format("`{}` lacks its dtype, shape or data_offsets", name));
  const auto type = entry["dtype"].get<std::string>();
  const auto kind = std::ranges::find(kinds, type, &Kind::name);
  if (kind == kinds.end())
    throw file.refuse("npy-type", fmt::format("`{}` holds numbers of a type attune does not know", name),
                      fmt::format("its type is {}", type.substr(0, 40)), "save floats, integers or booleans");
  if (entry["shape"].size() > Tensor::max_rank)
    throw file.refuse("npy-rank", fmt::format("`{}` has too many dimensions", name),
                      fmt::format("it has {}, and a tensor has at most {}", entry["shape"].size(), Tensor::max_rank),
                      "merge or index away some dimensions");
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = size_of(kind->dtype);
  for (const Json& extent : entry["shape"]) {
    const std::uint64_t one = whole(extent, file);
    if (__builtin_mul_overflow(bytes, one, &bytes) || one > std::numeric_limits<std::int64_t>::max())
      throw file.damaged(fmt::format("the shape of `{}` is too large for any memory", name));
    shape.push_back(static_cast<std::int64_t>(one));
  }
  const std::uint64_t begin = whole(entry["data_offsets"][0], file), end = whole(entry["data_offsets"][1], file);
  if (end < begin || end > file.bytes() - 8 - length || end - begin != bytes)
    throw file.damaged(fmt::format("`{}` takes {} bytes, and its offsets are {} and {} of {}", name, bytes, begin, end,
                                   file.bytes() - 8 - length));
  Owned out;
  out.memory = detail::allocate(Device::cpu(), kind->dtype, shape);
  out.tensor = Tensor(out.memory.get(), kind->dtype, shape);
  const std::string data = file.part(8 + length + begin, bytes);
  std::ranges::copy(data, static_cast<char*>(out.memory.get()));
  return out;
}

}  // namespace

Owned read_tensor(const std::string& path, const std::string& called) {
  if (const auto npz = asked(path, ".npz")) return read_npz(*npz, called);
  if (const auto safe = asked(path, ".safetensors")) return read_safetensors(*safe, called);
  return read_npy(path, called);
}

}  // namespace attune::runtime
