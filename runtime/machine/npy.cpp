// runtime/machine/npy.cpp — .npy files: the header is parsed without trust, the data checked against the file's size
// first
#include "runtime/machine/archive.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/machine/tensor.h"

namespace attune::runtime {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the bytes of a .npy file are taken as they are");

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t max_header = std::size_t{1} << 16;  ///< bytes; NumPy writes 118

/// Everything in a file before its data.
struct Header {
  std::string type;  ///< as NumPy spells it: <f4
  bool fortran = false;
  std::vector<std::int64_t> shape;
};

/// A file that is being read; its Errors name it.
class NpyFile {
 public:
  NpyFile(const fs::path& path, std::string called) : called_(std::move(called)) {
    std::error_code failed;
    const fs::file_status status = fs::status(path, failed);
    if (status.type() == fs::file_type::not_found)
      throw refuse("file-missing", "there is no such file", fmt::format("{} does not exist", path.string()),
                   "check the path");
    if (status.type() == fs::file_type::none)
      throw refuse("file-unreadable", "the file cannot be read", failed.message(), "check the path");
    if (!fs::is_regular_file(status))
      throw refuse("file-kind", "this is not a regular file",
                   fs::is_directory(status) ? path.string() + " is a folder" : path.string() + " is not a plain file",
                   "name a .npy file");
    in_.open(path, std::ios::binary);
    const auto bytes = fs::file_size(path, failed);
    if (!in_ || failed)
      throw refuse("file-unreadable", "the file cannot be read", failed ? failed.message() : std::strerror(errno),
                   "check its permissions");
    left_ = bytes;
  }

  Error refuse(std::string code, std::string problem, std::string why, std::string fix) const {
    return Error(std::move(code), std::move(problem), {.name = called_}, std::move(why), std::move(fix));
  }

  std::uintmax_t left() const { return left_; }
  void go_to(const FilePart& part) {
    in_.seekg(static_cast<std::streamoff>(part.begin));
    left_ = part.bytes;
  }

  /// Reads the next bytes; throws an Error if fewer are left.
  void take(void* into, std::size_t bytes, std::string_view what) {
    if (bytes <= left_ && in_.read(static_cast<char*>(into), static_cast<std::streamsize>(bytes))) {
      left_ -= bytes;
      return;
    }
    throw refuse("npy-truncated", "the file ends too early",
                 fmt::format("{} takes {} bytes, and {} are left", what, bytes, left_), "write the file again");
  }

 private:
  std::string called_;
  std::ifstream in_;
  std::uintmax_t left_ = 0;
};

/// The dictionary of a header: Python literals of a fixed form.
class HeaderText {
 public:
  HeaderText(std::string_view text, const NpyFile& file) : rest_(text), file_(file) {}

  Header parse() {
    Header header;
    std::vector<std::string> seen;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) throw bad("`" + key + "` occurs in it twice");
      if (key == "descr")
        header.type = type();
      else if (key == "fortran_order")
        header.fortran = boolean();
      else if (key == "shape")
        header.shape = shape();
      else
        throw bad("it has the unknown key `" + key.substr(0, 40) + "`");
      seen.push_back(key);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip();
    if (!rest_.empty()) throw bad("something follows its closing brace");
    if (seen.size() != 3) throw bad("it needs descr, fortran_order and shape");
    return header;
  }

 private:
  Error bad(const std::string& why) const {
    return file_.refuse("npy-header", "the header of the .npy file cannot be read", why,
                        "write the file with numpy.save");
  }
  void skip() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n' || rest_[0] == '\t')) rest_.remove_prefix(1);
  }
  bool accept(char c) {
    skip();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) throw bad(fmt::format("a `{}` is missing", c));
  }
  std::string quoted() {
    const char quote = accept('\'') ? '\'' : '"';
    if (quote == '"') expect('"');
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) throw bad("a quoted word does not end");
    std::string word(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return word;
  }
  std::string type() {
    skip();
    if (!rest_.empty() && rest_[0] == '[')
      throw file_.refuse("npy-type", "the file holds records", "its type has named fields",
                         "save one field of it, as floats, integers or booleans");
    return quoted();
  }
  bool boolean() {
    skip();
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}})
      if (rest_.starts_with(word)) {
        rest_.remove_prefix(word.size());
        return value;
      }
    throw bad("fortran_order is neither True nor False");
  }
  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> extents;
    expect('(');
    while (!accept(')')) {
      skip();
      std::int64_t extent = 0;
      const auto [end, status] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), extent);
      if (status != std::errc{}) throw bad("an extent of the shape is not a whole number that fits 64 bits");
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      if (extent < 0) throw bad(fmt::format("an extent of the shape is {}", extent));
      extents.push_back(extent);
      if (extents.size() > Tensor::max_rank)
        throw file_.refuse("npy-rank", "the file has too many dimensions",
                           fmt::format("its shape begins with [{}], and a tensor has at most {} dimensions",
                                       fmt::join(extents, ", "), Tensor::max_rank),
                           "merge or index away some dimensions");
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return extents;
  }

  std::string_view rest_;
  const NpyFile& file_;
};

Header read_header(NpyFile& file) {
  std::array<char, 8> start{};
  if (file.left() < start.size())
    throw file.refuse("npy-magic", "this is not a .npy file", fmt::format("it has only {} bytes", file.left()),
                      "write the file with numpy.save");
  file.take(start.data(), start.size(), "the start of a .npy file");
  if (std::string_view(start.data(), magic.size()) != magic)
    throw file.refuse("npy-magic", "this is not a .npy file",
                      std::string_view(start.data(), 2) == "PK" ? "it is a .zip or .npz archive"
                                                                : "it does not start with \\x93NUMPY",
                      std::string_view(start.data(), 2) == "PK" ? "name it FILE.npz, and write FILE.npz:NAME"
                                                                : "write the file with numpy.save");
  const int version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3)
    throw file.refuse("npy-version", fmt::format("this is version {} of the .npy format", version),
                      "versions 1, 2 and 3 are supported", "write the file with numpy.save");
  std::uint32_t length = 0;
  file.take(&length, version == 1 ? 2 : 4, "the length of the header");
  if (length > max_header)
    throw file.refuse("npy-header", "the header of the .npy file cannot be read",
                      fmt::format("it claims {} bytes, and the most is {}", length, max_header),
                      "write the file with numpy.save");
  std::string text(std::min<std::uintmax_t>(length, file.left()), '\0');
  if (text.size() < length) file.take(nullptr, length, "the header");
  file.take(text.data(), text.size(), "the header");
  return HeaderText(text, file).parse();
}

/// An element's type in the file, and in memory.
struct Stored {
  std::string_view spelling;
  DType becomes;
  std::size_t bytes;
};
constexpr std::array stored_types{
    Stored{"b1", DType::boolean, 1}, Stored{"i1", DType::i8, 1},  Stored{"u1", DType::u8, 1},
    Stored{"i2", DType::i16, 2},     Stored{"u2", DType::i32, 2}, Stored{"i4", DType::i32, 4},
    Stored{"u4", DType::i64, 4},     Stored{"i8", DType::i64, 8}, Stored{"u8", DType::i64, 8},
    Stored{"f2", DType::f16, 2},     Stored{"f4", DType::f32, 4}, Stored{"f8", DType::f64, 8}};

const Stored& stored_type(const Header& header, const NpyFile& file) {
  const std::string_view type = header.type;
  const char order = type.empty() ? ' ' : type[0];
  for (const Stored& row : stored_types) {
    if (type.empty() || type.substr(1) != row.spelling) continue;
    if (order == '<' || order == '=' || (order == '|' && row.bytes == 1)) return row;
    if (order == '>')
      throw file.refuse("npy-order", "the file's numbers are big-endian", fmt::format("its type is `{}`", type),
                        "save a.astype(a.dtype.newbyteorder('<'))");
  }
  const std::string_view kind = type.substr(std::min<std::size_t>(1, type.size()));
  std::string what = "numbers of a type attune does not know";
  if (kind.starts_with('O')) what = "Python objects";
  if (kind.starts_with('S') || kind.starts_with('U') || kind.starts_with('a')) what = "text";
  if (kind.starts_with('V')) what = "raw records";
  if (kind.starts_with('c')) what = "complex numbers";
  if (kind.starts_with('M') || kind.starts_with('m')) what = "dates or times";
  throw file.refuse("npy-type", "the file holds " + what, fmt::format("its type is `{}`", type.substr(0, 40)),
                    "save floats (f2, f4, f8), integers or booleans");
}

/// The number of elements, after checking that the file holds them.
std::size_t checked_count(const Header& header, const Stored& type, const NpyFile& file) {
  std::uintmax_t count = 1;
  for (const std::int64_t extent : header.shape)
    if (extent == 0) count = 0;
  for (const std::int64_t extent : header.shape) {
    if (count && static_cast<std::uintmax_t>(extent) > std::numeric_limits<std::int64_t>::max() / 8 / count)
      throw file.refuse("npy-shape", "the file's shape is too large for any memory",
                        fmt::format("its shape is [{}]", fmt::join(header.shape, ", ")),
                        "write the file with numpy.save");
    count *= static_cast<std::uintmax_t>(extent);
  }
  const std::uintmax_t bytes = count * type.bytes;
  if (bytes == file.left()) return static_cast<std::size_t>(count);
  const std::string why = fmt::format("{} [{}] takes {} bytes, and {} follow the header", header.type,
                                      fmt::join(header.shape, ", "), bytes, file.left());
  const std::string fix = "write the file again";
  if (bytes > file.left()) throw file.refuse("npy-truncated", "the file ends too early", why, fix);
  throw file.refuse("npy-trailing", "the file continues after its data", why, fix);
}

/// Widens elements while reading: u16, u32 and u64.
template <class From, class To>
void widen(const std::vector<char>& raw, void* into, std::size_t count, const NpyFile& file) {
  for (std::size_t i = 0; i < count; ++i) {
    From from;
    std::memcpy(&from, raw.data() + i * sizeof from, sizeof from);
    if (from > static_cast<std::uint64_t>(std::numeric_limits<To>::max()))
      throw file.refuse(
          "npy-value", "a number of the file is too large",
          fmt::format("element {} is {}, and integers are at most {}", i, from, std::numeric_limits<To>::max()),
          "save smaller integers, or floats");
    static_cast<To*>(into)[i] = static_cast<To>(from);
  }
}

std::vector<std::int64_t> fortran_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides;
  std::int64_t step = 1;
  for (const std::int64_t extent : shape) {
    strides.push_back(step);
    step *= std::max<std::int64_t>(extent, 1);
  }
  return strides;
}

Owned read(NpyFile& file) {
  const Header header = read_header(file);
  const Stored& type = stored_type(header, file);
  const std::size_t count = checked_count(header, type, file);
  Owned out;
  out.memory = detail::allocate(Device::cpu(), type.becomes, header.shape);
  out.tensor = Tensor(out.memory.get(), type.becomes, header.shape,
                      header.fortran ? fortran_strides(header.shape) : std::vector<std::int64_t>{});
  const bool widens = type.spelling[0] == 'u' && type.bytes > 1;
  if (!widens) {
    if (count) file.take(out.memory.get(), count * type.bytes, "the data");
    return out;
  }
  std::vector<char> raw(count * type.bytes);
  if (count) file.take(raw.data(), raw.size(), "the data");
  if (type.bytes == 2) widen<std::uint16_t, std::int32_t>(raw, out.memory.get(), count, file);
  if (type.bytes == 4) widen<std::uint32_t, std::int64_t>(raw, out.memory.get(), count, file);
  if (type.bytes == 8) widen<std::uint64_t, std::int64_t>(raw, out.memory.get(), count, file);
  return out;
}

}  // namespace

Owned read_npy(const fs::path& path, const std::string& called) {
  NpyFile file(path, called);
  return read(file);
}

Owned read_npy(const fs::path& path, const std::string& called, const FilePart& part) {
  NpyFile file(path, called);
  file.go_to(part);
  return read(file);
}

std::string npy_of(const Tensor& t) {
  const auto shape = std::span(t.shape).first(static_cast<std::size_t>(t.rank));
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}{}), }}",
                                   fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // The data starts at a multiple of 64 bytes, after ten bytes of magic, version and length.
  header.append(64 - (10 + header.size() + 1) % 64, ' ');
  header += '\n';
  std::string out = std::string(magic) + std::string("\x01\x00", 2);
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  std::array<std::int64_t, Tensor::max_rank> at{}, extent{1, 1, 1, 1};
  std::copy(shape.begin(), shape.end(), extent.begin());
  for (at[0] = 0; at[0] < extent[0]; ++at[0])
    for (at[1] = 0; at[1] < extent[1]; ++at[1])
      for (at[2] = 0; at[2] < extent[2]; ++at[2])
        for (at[3] = 0; at[3] < extent[3]; ++at[3]) {
          const auto value = static_cast<float>(load(t, offset(t, at[0], at[1], at[2], at[3])));
          out.append(reinterpret_cast<const char*>(&value), sizeof value);
        }
  return out;
}

}  // namespace attune::runtime
