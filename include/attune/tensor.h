// include/attune/tensor.h — memory attune reads and writes: borrowed views with DLPack's fields, and owning arrays
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <attune/expr.h>

namespace attune {

enum class DType : std::uint8_t { f32, f16, bf16, f64, i64, i32, i16, i8, u8, boolean, e4m3 };
std::string_view name_of(DType dtype);
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16: return 2;
    case DType::i8:
    case DType::u8:
    case DType::boolean:
    case DType::e4m3: return 1;
  }
  return 0;
}

/// 16-bit floats as stored; arithmetic is done in float. Conversions round to nearest even.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  f16(float value);
  operator float() const;
};
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  bf16(float value);
  operator float() const;
};

/// FP8 (E4M3) for KV caches: 4 bits of exponent, 3 bits of fraction. The largest value is 448; there is a NaN and no
/// infinity. Conversions round to nearest even; larger magnitudes saturate to 448.
struct e4m3 {
  std::uint8_t bits = 0;
  e4m3() = default;
  e4m3(float value);
  operator float() const;
};

namespace detail {
template <class T>
struct Element;
#define ATTUNE_ELEMENT(type, name, seen_as)     \
  template <>                                   \
  struct Element<type> {                        \
    static constexpr DType dtype = DType::name; \
    using Seen = seen_as;                       \
  }
ATTUNE_ELEMENT(float, f32, float);
ATTUNE_ELEMENT(f16, f16, float);
ATTUNE_ELEMENT(bf16, bf16, float);
ATTUNE_ELEMENT(double, f64, float);
ATTUNE_ELEMENT(std::int64_t, i64, int);
ATTUNE_ELEMENT(std::int32_t, i32, int);
ATTUNE_ELEMENT(std::int16_t, i16, int);
ATTUNE_ELEMENT(std::int8_t, i8, int);
ATTUNE_ELEMENT(std::uint8_t, u8, int);
ATTUNE_ELEMENT(bool, boolean, bool);
ATTUNE_ELEMENT(e4m3, e4m3, float);
#undef ATTUNE_ELEMENT
}  // namespace detail

template <class T>
class Array;

/// The device that holds memory.
struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  static Device cpu() { return {}; }
  /// An NVIDIA GPU, by the process's own numbering. Does not touch the device.
  static Device cuda(int index = 0) { return {.kind = Kind::cuda, .index = index}; }

  /// A zeroed array of up to four dimensions, aligned to 64 bytes, freed with its last copy. `explain` uses the name.
  template <class T>
  Array<T> array(std::initializer_list<std::int64_t> shape, std::string name = {}) const;

  bool operator==(const Device&) const = default;
};

/// A borrowed view: attune never frees it. Strides count elements and may be 0 or negative.
struct Tensor {
  static constexpr int max_rank = 4;
  using Extents = std::array<std::int64_t, max_rank>;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = -1;  ///< -1: no tensor (an omitted optional argument)
  Extents shape{}, strides{};
  Device device{};

  Tensor() = default;
  /// Contiguous unless strides are given. Memory that a call only reads may be const: a call writes nothing but its
  /// results.
  Tensor(const void* data, DType dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides = {},
         Device device = {});
  Tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
         std::initializer_list<std::int64_t> strides = {}, Device device = {});

  /// A tensor without memory: expressions can capture it by its name, and each call binds the memory that they read
  /// (Forward::captures). A call may bind any type of the same kind, e.g. another float type for a float.
  static Tensor declared(DType dtype, int rank);

  bool given() const { return rank >= 0; }
  bool declared() const { return given() && shape[0] < 0; }
  std::int64_t size() const {
    std::int64_t size = rank < 0 ? 0 : 1;
    for (int i = 0; i < rank; ++i) size *= shape[static_cast<std::size_t>(i)];
    return size;
  }
  /// The same memory with its dimensions in another order: [b, s, h, d] as [b, h, s, d] is permuted({0, 2, 1, 3}).
  Tensor permuted(std::initializer_list<int> order) const;
  /// "f32 [2, 16, 8192, 128]"
  std::string describe() const;
  bool operator==(const Tensor&) const = default;
};

/// Copies `from` into `to`, of the same type and shape, both contiguous, on any devices. Done when it returns. Copies
/// to or from a device wait for earlier work of `stream`: a CUstream, null for the default one.
void copy(const Tensor& from, const Tensor& to, void* stream = nullptr, Line at = Line::here());

namespace detail {
Handle read(const Tensor&, const std::string& name, std::span<const Handle> index, Line);
std::shared_ptr<void> allocate(const Device&, DType, std::span<const std::int64_t> shape);
void require_seen_as(const Tensor&, const std::string& name, char seen, Line);
void require_on_host(const Tensor&, const std::string& name, Line);
template <class I>
concept NoIndex = !std::convertible_to<const I&, Int> && (Number<I> || Condition<I>);
}  // namespace detail

/// A captured tensor whose elements the kernel sees as Floats, Ints or Bools. `slope[at.head]`, `bias(at.q, at.kv)`. A
/// tensor too small for a coordinate of a call is refused; an index that depends on data is clamped into it.
template <class T>
class Capture {
 public:
  using Read = Value<T>;

  explicit Capture(Tensor tensor, std::string name = {}, Line at = Line::here())
      : tensor_(tensor), name_(std::move(name)) {
    detail::require_seen_as(tensor_, name_, std::is_same_v<T, float> ? 'f' : std::is_same_v<T, int> ? 'i' : 'b', at);
  }

  Read operator[](Rhs<int> i) const { return read(i.at, i.value); }
  Read operator()(Line at = Line::here()) const { return read(at); }
  Read operator()(Int i, Line at = Line::here()) const { return read(at, i); }
  Read operator()(Int i, Int j, Line at = Line::here()) const { return read(at, i, j); }
  Read operator()(Int i, Int j, Int k, Line at = Line::here()) const { return read(at, i, j, k); }
  Read operator()(Int i, Int j, Int k, Int l, Line at = Line::here()) const { return read(at, i, j, k, l); }

  // Mistakes for which C++ would print a page of candidates.
  template <detail::NoIndex I>
  Read operator[](const I&) const {
    static_assert(detail::never<I>, "attune: an index is an Int: convert it with i32(x)");
    return read(Line{});
  }
  template <class... I>
  requires(sizeof...(I) > Tensor::max_rank || (detail::NoIndex<I> || ...)) Read operator()(const I&...) const {
    static_assert(sizeof...(I) <= Tensor::max_rank, "attune: a captured tensor has at most four dimensions");
    static_assert(!(detail::NoIndex<I> || ...), "attune: an index is an Int: convert it with i32(x)");
    return read(Line{});
  }

  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }
  const std::string& name() const { return name_; }

 private:
  template <class... I>
  Read read(Line at, const I&... index) const {
    const std::array<detail::Handle, sizeof...(I)> nodes{index.node()...};
    return Read(detail::read(tensor_, name_, nodes, at));
  }

  Tensor tensor_;
  std::string name_;
};

/// Owned memory, shared by copies. Inside a kernel it is a capture like any other.
template <class T>
class Array : public Capture<typename detail::Element<T>::Seen> {
  using Base = Capture<typename detail::Element<T>::Seen>;

 public:
  Array(const Device& device, std::span<const std::int64_t> shape, std::string name = {})
      : Array(detail::allocate(device, detail::Element<T>::dtype, shape), device, shape, std::move(name)) {}

  T* data() const { return static_cast<T*>(this->tensor().data); }
  /// Every element in order. An Error unless the array is on the host.
  std::span<T> values(Line at = Line::here()) const {
    detail::require_on_host(this->tensor(), this->name(), at);
    return {data(), static_cast<std::size_t>(this->tensor().size())};
  }
  /// A copy with its own memory, on that device.
  Array on(const Device& device, Line at = Line::here()) const {
    Array out(device, std::span(this->tensor().shape).first(static_cast<std::size_t>(this->tensor().rank)),
              this->name());
    copy(*this, out, nullptr, at);
    return out;
  }

 private:
  Array(std::shared_ptr<void> owner, const Device& device, std::span<const std::int64_t> shape, std::string name)
      : Base(Tensor(owner.get(), detail::Element<T>::dtype, shape, {}, device), std::move(name)),
        owner_(std::move(owner)) {}

  std::shared_ptr<void> owner_;
};

template <class T>
Array<T> Device::array(std::initializer_list<std::int64_t> shape, std::string name) const {
  return Array<T>(*this, std::span(shape.begin(), shape.size()), std::move(name));
}

}  // namespace attune
