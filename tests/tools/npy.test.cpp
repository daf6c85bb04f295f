// tests/tools/npy.test.cpp — .npy files: read, written, and refused where they are hostile
#include "runtime/machine/archive.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <random>
#include <vector>

#include <attune/error.h>

#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/elements.h"
#include "tests/golden.h"
#include "tools/output/output.h"

using namespace attune;
using tests::elements;
using namespace attune::tools;
using attune::runtime::Owned, attune::runtime::npy_of, attune::runtime::read_npy;
using tests::golden_error;
namespace fs = std::filesystem;

namespace {

/// A folder that is removed at the end.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("attune-npy-" + std::to_string(std::random_device{}()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  fs::path write(const std::string& bytes) const {
    std::ofstream(file(), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file();
  }
  fs::path file() const { return path_ / "x.npy"; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// The bytes of a file with this header dictionary, as NumPy would write them.
std::string npy(const std::string& dictionary, const std::string& data, int version = 1) {
  std::string length;
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) length += static_cast<char>(dictionary.size() >> (8 * i) & 0xff);
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' + length + dictionary + data;
}
std::string dictionary(const std::string& type, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}
template <class T>
std::string bytes(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

std::string refused(const std::string& content) {
  const Folder folder;
  try {
    read_npy(folder.write(content), "--q x.npy");
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("every type that attune represents is read", "[npy]") {
  const Folder folder;
  const auto reads = [&](const std::string& type, const std::string& data, DType becomes, std::vector<double> values) {
    INFO(type);
    const Owned in = read_npy(folder.write(npy(dictionary(type, "(2,)"), data)), "x");
    CHECK(in.tensor.dtype == becomes);
    CHECK(elements(in.tensor) == values);
  };
  reads("<f4", bytes<float>({1.5f, -2}), DType::f32, {1.5, -2});
  reads("<f8", bytes<double>({0.1, -2}), DType::f64, {0.1, -2});
  reads("<f2", bytes<std::uint16_t>({0x3c00, 0xc000}), DType::f16, {1, -2});
  reads("|i1", bytes<std::int8_t>({-7, 7}), DType::i8, {-7, 7});
  reads("|u1", bytes<std::uint8_t>({200, 7}), DType::u8, {200, 7});
  reads("<i2", bytes<std::int16_t>({-300, 7}), DType::i16, {-300, 7});
  reads("<u2", bytes<std::uint16_t>({65535, 7}), DType::i32, {65535, 7});
  reads("<i4", bytes<std::int32_t>({-70000, 7}), DType::i32, {-70000, 7});
  reads("<u4", bytes<std::uint32_t>({7, 70000}), DType::i64, {7, 70000});
  reads("<i8", bytes<std::int64_t>({-7, 7}), DType::i64, {-7, 7});
  reads("<u8", bytes<std::uint64_t>({8, 7}), DType::i64, {8, 7});
  reads("|b1", bytes<std::uint8_t>({1, 0}), DType::boolean, {1, 0});
}

TEST_CASE("versions 1, 2 and 3, either order, any spacing and rank 0 to 4 are read", "[npy]") {
  const Folder folder;
  const std::string data = bytes<float>({1, 2, 3, 4, 5, 6});
  for (const int version : {1, 2, 3})
    CHECK(elements(read_npy(folder.write(npy(dictionary("<f4", "(2, 3)"), data, version)), "x").tensor) ==
          std::vector<double>{1, 2, 3, 4, 5, 6});
  const Owned fortran = read_npy(folder.write(npy(dictionary("<f4", "(2, 3)", "True"), data)), "x");
  CHECK(elements(fortran.tensor) == std::vector<double>{1, 3, 5, 2, 4, 6});
  const std::string spaced = "{ \"shape\":(1,2,  3,1),'fortran_order':False , 'descr' : '<f4'}   \n";
  CHECK(read_npy(folder.write(npy(spaced, data)), "x").tensor.describe() == "f32 [1, 2, 3, 1]");
  CHECK(read_npy(folder.write(npy(dictionary("<f4", "()"), bytes<float>({5}))), "x").tensor.rank == 0);
  CHECK(read_npy(folder.write(npy(dictionary("<f4", "(0, 7)"), "")), "x").tensor.size() == 0);
}

TEST_CASE("what is written is read back, from any strides", "[npy]") {
  const Folder folder;
  std::vector<double> values{1, 2, 3, 4, 5, 6.1};
  const Tensor t(values.data(), DType::f64, {2, 3});
  write_files(std::array{FileBytes{folder.file(), npy_of(t.permuted({1, 0}))}});
  const Owned back = read_npy(folder.file(), "x");
  CHECK(back.tensor.describe() == "f32 [3, 2]");
  CHECK(elements(back.tensor) == std::vector<double>{1, 4, 2, 5, 3, static_cast<double>(6.1f)});
  CHECK((npy_of(t).size() - 24) % 64 == 0);  // the data is aligned as NumPy wants it
  float one = 1;
  CHECK(npy_of(Tensor(&one, DType::f32, {1})).find("'shape': (1,), }") != std::string::npos);
  CHECK(npy_of(Tensor(&one, DType::f32, std::span<const std::int64_t>())).find("'shape': (), }") != std::string::npos);
}

TEST_CASE("files that attune cannot represent are refused", "[npy]") {
  const std::string eight(8, '\0');
  golden_error("npy-type.object", refused(npy(dictionary("|O", "(1,)"), eight)));
  golden_error("npy-type.text", refused(npy(dictionary("<U4", "(1,)"), eight)));
  golden_error("npy-type.complex", refused(npy(dictionary("<c8", "(1,)"), eight)));
  golden_error("npy-type.date", refused(npy(dictionary("<M8[ns]", "(1,)"), eight)));
  golden_error("npy-type.unknown", refused(npy(dictionary("", "(1,)"), eight)));
  golden_error("npy-type.records",
               refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", eight)));
  golden_error("npy-order", refused(npy(dictionary(">f4", "(2,)"), eight)));
  golden_error("npy-rank", refused(npy(dictionary("<f4", "(1, 1, 1, 1, 2)"), eight)));
  golden_error("npy-value", refused(npy(dictionary("<u8", "(1,)"), std::string(8, '\xff'))));
}

TEST_CASE("damaged and hostile files are refused before memory is taken", "[npy]") {
  const std::string eight(8, '\0');
  golden_error("npy-magic.empty", refused(""));
  golden_error("npy-magic.text", refused("q = 1.0, 2.0"));
  golden_error("npy-magic.zip", refused("PK\x03\x04" + eight));
  golden_error("npy-version", refused(npy(dictionary("<f4", "(2,)"), eight, 4)));
  golden_error("npy-truncated.data", refused(npy(dictionary("<f4", "(3,)"), eight)));
  golden_error("npy-truncated.header", refused(npy(dictionary("<f4", "(2,)"), "").substr(0, 30)));
  golden_error("npy-truncated.length", refused(std::string("\x93NUMPY\x02\x00\x10", 9)));
  golden_error("npy-trailing", refused(npy(dictionary("<f4", "(1,)"), eight)));
  golden_error("npy-header.long", refused(std::string("\x93NUMPY\x02\x00\xff\xff\xff\x7f", 12) + eight));
  golden_error("npy-truncated.huge", refused(npy(dictionary("<f4", "(1000000, 1000000)"), eight)));
  golden_error("npy-shape", refused(npy(dictionary("<f4", "(4611686018427387904, 4)"), eight)));
  golden_error("npy-header.extent", refused(npy(dictionary("<f4", "(99999999999999999999,)"), eight)));
  golden_error("npy-header.negative", refused(npy(dictionary("<f4", "(-2,)"), eight)));
  golden_error("npy-header.order", refused(npy(dictionary("<f4", "(2,)", "Maybe"), eight)));
  golden_error("npy-header.twice", refused(npy("{'descr': '<f4', 'descr': '<f8'}\n", eight)));
  golden_error("npy-header.key", refused(npy("{'dtype': '<f4'}\n", eight)));
  golden_error("npy-header.incomplete", refused(npy("{'descr': '<f4'}\n", eight)));
  golden_error("npy-header.open", refused(npy("{'descr': '<f4", eight)));
  golden_error("npy-header.behind", refused(npy(dictionary("<f4", "(2,)") + "; import os", eight)));
}

TEST_CASE("every prefix and every flipped byte of a file is read or refused, never a crash", "[npy]") {
  const Folder folder;
  const std::string whole = npy(dictionary("<f4", "(2, 1)"), bytes<float>({1, 2}));
  std::size_t refusals = 0;
  const auto attempt = [&](const std::string& content) {
    try {
      read_npy(folder.write(content), "x");
    } catch (const Error&) {
      ++refusals;
    }
  };
  for (std::size_t i = 0; i < whole.size(); ++i) attempt(whole.substr(0, i));
  CHECK(refusals == whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i)
    for (const int flip : {1, 0x20, 0x80}) {
      std::string broken = whole;
      broken[i] = static_cast<char>(broken[i] ^ flip);
      attempt(broken);
    }
  CHECK(refusals > whole.size());
}

TEST_CASE("what is not a plain file is refused", "[npy]") {
  const Folder folder;
  const auto code = [](const fs::path& path) {
    try {
      read_npy(path, "x");
    } catch (const Error& e) {
      return e.code;
    }
    return std::string("nothing was refused");
  };
  CHECK(code(folder.path()) == "file-kind");
  CHECK(code("/dev/zero") == "file-kind");
  CHECK(code(folder.path() / "no.npy") == "file-missing");
}
