// examples/runtime/safetensors.h — a model file: named tensors and a few words about them, or why it is refused
#pragma once

#include <attune/tensor.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace runtime {

/// What the user can mend: a file, an option.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The format: 8 bytes with the header's length, a header in JSON, then the tensors' bytes, all little endian.
class SafeTensors {
 public:
  explicit SafeTensors(const std::string& path) : path_(path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) refuse("cannot be opened");
    bytes_.resize(static_cast<std::size_t>(file.tellg()));
    file.seekg(0);
    file.read(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    if (!file) refuse("cannot be read");
    std::uint64_t header = 0;
    if (bytes_.size() < sizeof header) refuse("is truncated: it ends before the length of its header");
    std::memcpy(&header, bytes_.data(), sizeof header);
    const std::uint64_t behind = bytes_.size() - sizeof header;
    // No header is that long: these are the first letters of another kind of file.
    if (header > 100'000'000)
      refuse("is no safetensors file: its header would have " + std::to_string(header) + " bytes");
    if (header > behind)
      refuse("is truncated: its header has " + std::to_string(header) + " bytes, and " + std::to_string(behind) +
             " are there");
    at_ = sizeof header;
    end_ = data_ = sizeof header + header;
    read_header();
    check_ranges();
  }

  /// A word of the metadata; empty if it is not there.
  std::string word(const std::string& name) const {
    const auto found = words_.find(name);
    return found == words_.end() ? "" : found->second;
  }

  /// The elements of the tensor as f32, appended to `to`. Refused unless it is there, in this shape.
  void read(const std::string& name, const std::vector<std::uint64_t>& shape, std::vector<float>& to) const {
    const auto found = entries_.find(name);
    if (found == entries_.end()) refuse("lacks the tensor " + name);
    const Entry& of = found->second;
    if (of.shape != shape)
      refuse("holds " + name + " as " + text(of.shape) + ", and its configuration says " + text(shape));
    const char* const from = bytes_.data() + data_ + of.offsets[0];
    if (of.dtype == "F32") append<float>(from, count(of), to);
    if (of.dtype == "F16") append<attune::f16>(from, count(of), to);
    if (of.dtype == "BF16") append<attune::bf16>(from, count(of), to);
  }

  [[noreturn]] void refuse(const std::string& why) const { throw Refused(path_ + " " + why); }

 private:
  struct Entry {
    std::string dtype;
    std::vector<std::uint64_t> shape, offsets;
  };

  template <class T>
  static void append(const char* from, std::uint64_t count, std::vector<float>& to) {
    for (std::uint64_t i = 0; i < count; ++i) {
      T one;
      std::memcpy(&one, from + i * sizeof one, sizeof one);  // a file promises no alignment
      to.push_back(static_cast<float>(one));
    }
  }
  static std::string text(const std::vector<std::uint64_t>& shape) {
    std::string out = "[";
    for (const std::uint64_t n : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(n);
    return out + "]";
  }
  /// The number of elements; refused where no memory could hold them.
  std::uint64_t count(const Entry& of) const {
    std::uint64_t out = 1;
    for (const std::uint64_t n : of.shape) {
      if (n != 0 && out > (std::uint64_t{1} << 48) / n) refuse("holds a tensor of shape " + text(of.shape));
      out *= n;
    }
    return out;
  }

  void check_ranges() const {
    const std::uint64_t there = bytes_.size() - data_;
    for (const auto& [name, of] : entries_) {
      const std::uint64_t size = of.dtype == "F32" ? 4 : of.dtype == "F16" || of.dtype == "BF16" ? 2 : 0;
      if (size == 0) refuse("holds " + name + " as " + of.dtype + "; this program reads F32, F16 and BF16");
      if (of.offsets.size() != 2 || of.offsets[0] > of.offsets[1] || of.offsets[1] - of.offsets[0] != count(of) * size)
        refuse("is damaged: the place of " + name + " does not fit its shape " + text(of.shape));
      if (of.offsets[1] > there)
        refuse("is truncated: " + name + " ends at byte " + std::to_string(of.offsets[1]) + " of the tensors, and " +
               std::to_string(there) + " are there");
    }
  }

  // ---- the header: objects, text, and lists of whole numbers are all the JSON that it may have ----

  char peek() {
    while (at_ < end_ && (bytes_[at_] == ' ' || bytes_[at_] == '\n' || bytes_[at_] == '\t' || bytes_[at_] == '\r'))
      ++at_;
    return at_ < end_ ? bytes_[at_] : '\0';
  }
  bool next_is(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!next_is(c)) refuse(std::string("is damaged: its header lacks a ") + c + " at byte " + std::to_string(at_));
  }
  std::string quoted() {
    expect('"');
    std::string out;
    for (; at_ < end_ && bytes_[at_] != '"'; ++at_) {
      if (bytes_[at_] == '\\' && ++at_ < end_ && bytes_[at_] != '"' && bytes_[at_] != '\\' && bytes_[at_] != '/')
        out += '\\';  // other escapes stay as they are: no name that is looked for has one
      if (at_ < end_) out += bytes_[at_];
    }
    expect('"');
    return out;
  }
  std::vector<std::uint64_t> numbers() {
    std::vector<std::uint64_t> out;
    expect('[');
    if (next_is(']')) return out;
    do {
      peek();
      const auto [stop, error] = std::from_chars(bytes_.data() + at_, bytes_.data() + end_, out.emplace_back());
      if (error != std::errc()) refuse("is damaged: its header has no number at byte " + std::to_string(at_));
      at_ = static_cast<std::size_t>(stop - bytes_.data());
    } while (next_is(','));
    expect(']');
    return out;
  }
  /// Calls member(name) behind each `name:` of an object.
  template <class Member>
  void object(Member member) {
    expect('{');
    if (next_is('}')) return;
    do {
      const std::string name = quoted();
      expect(':');
      member(name);
    } while (next_is(','));
    expect('}');
  }
  void read_header() {
    object([&](const std::string& tensor) {
      if (tensor == "__metadata__") {
        object([&](const std::string& name) { words_[name] = quoted(); });
        return;
      }
      Entry& of = entries_[tensor];
      object([&](const std::string& name) {
        if (name == "dtype")
          of.dtype = quoted();
        else
          (name == "shape" ? of.shape : of.offsets) = numbers();
      });
    });
    if (peek() != '\0') refuse("is damaged: its header goes on at byte " + std::to_string(at_));
  }

  std::string path_;
  std::vector<char> bytes_;
  std::size_t at_ = 0, end_ = 0, data_ = 0;  ///< of bytes_: where the header is read, its end, the first tensor
  std::map<std::string, std::string> words_;
  std::map<std::string, Entry> entries_;
};

}  // namespace runtime
