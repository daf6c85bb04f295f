// tests/codegen/kit.test.cpp — every kernel of the kit against plain loops, at hostile sizes and strides
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/codegen/exact.h"

using namespace attune;
using namespace attune::codegen;
using namespace attune::tests;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

enum class Into { set, add, scale };

/// Operands of a product, and the C they should give.
struct ProductCase {
  const LoadedKit& kit;
  std::int64_t groups, panels, k, per, nr;
  std::int64_t rows, columns, a_row, b_k, b_panel, c_row;
  Elements a, b;
  Guarded<float> c, keep;
  Into into;

  ProductCase(const LoadedKit& of, std::int64_t g, std::int64_t p, std::int64_t units, Into how, std::mt19937& random,
              bool half = false)
      : kit(of), groups(g), panels(p), k(units), per(per_unit(kit.unit)), nr(half ? kit.tiling.nr / 2 : kit.tiling.nr),
        rows(g * kit.tiling.mr), columns(p * nr), a_row(k + 3), b_k(nr + 1), b_panel(k * b_k + 2), c_row(columns + 3),
        a(element(), ((rows - 1) * a_row + k) * per),
        b(element(), std::max<std::int64_t>(0, (panels - 1) * b_panel + (k - 1) * b_k + nr) * per),
        c(static_cast<std::size_t>((rows - 1) * c_row + columns)), keep(static_cast<std::size_t>(rows)), into(how) {
    fill_small(a, random);
    fill_small(b, random);
    for (float& x : c) x = static_cast<float>(small(random));
    for (float& x : keep) x = static_cast<float>(small(random)) / 2;
  }

  DType element() const { return kit.is_bf16() ? DType::bf16 : DType::f32; }

  Product product() const {
    return {.a = a.data(),
            .a_row = a_row,
            .b = b.data(),
            .b_k = b_k,
            .b_panel = b_panel,
            .c = c.data(),
            .c_row = c_row,
            .groups = groups,
            .panels = panels,
            .k = k,
            .keep = into == Into::scale ? keep.data() : nullptr,
            .add = into == Into::add};
  }

  /// `guarded`: zeros of A add nothing.
  std::vector<float> wanted(bool guarded) const {
    std::vector<float> want = copy(c);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t n = 0; n < columns; ++n) {
        float& out = want[static_cast<std::size_t>(r * c_row + n)];
        double sum = into == Into::set ? 0 : into == Into::add ? out : out * keep[r];
        for (std::int64_t i = 0; i < k * per; ++i) {
          const double x = a.get(r * a_row * per + i);
          const std::int64_t line = n / nr * b_panel + i / per * b_k + n % nr;
          if (!guarded || x != 0) sum += x * b.get(line * per + i % per);
        }
        out = static_cast<float>(sum);
      }
    return want;
  }
};

std::vector<std::int64_t> ks_of(const LoadedKit& kit) {
  if (kit.tiling.k > 1) return {0, kit.tiling.k, 2 * kit.tiling.k, 4 * kit.tiling.k};
  return {0, 1, 2, 3, 4, 5, 7, 8, 13, 64};
}

}  // namespace

TEST_CASE("kits of every instruction set compile anywhere", "[kit]") {
#if defined(__x86_64__)
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx}) {
    CHECK_NOTHROW(kit_object(isa, Unit::f32, DType::f16));
    if (has_bf16(isa)) CHECK_NOTHROW(kit_object(isa, Unit::bf16, DType::bf16));
  }
#endif
}

TEST_CASE("products are exact sums, and touch their block alone", "[kit]") {
  std::mt19937 random(1);
  for (const LoadedKit& kit : kits())
    for (const std::int64_t k : ks_of(kit))
      for (const auto& [groups, panels] : {std::pair(1, 1), std::pair(3, 1), std::pair(2, 3)})
        for (const auto& [into, half] : {std::pair(Into::set, false),
                                         {Into::add, false},
                                         {Into::scale, false},
                                         {Into::set, true},
                                         {Into::add, true},
                                         {Into::scale, true}}) {
          auto* multiply = kit.find<ProductFn>(half ? kit_symbol::half_product : kit_symbol::product);
          CHECK((multiply || (half && kit.tiling.k > 1)));
          if (!multiply) continue;
          INFO(kit.name() << ", k " << k << ", " << groups << " x " << panels << ", into " << static_cast<int>(into)
                          << (half ? ", half panels" : ""));
          const ProductCase it(kit, groups, panels, k, into, random, half);
          const std::vector<float> want = it.wanted(false);
          const Product product = it.product();
          const Tiles tiles(kit);
          multiply(&product);
          check_all(it.c, want);
        }
}

TEST_CASE("a product set into C does not read it", "[kit]") {
  std::mt19937 random(2);
  for (const LoadedKit& kit : kits())
    for (const char* symbol : {kit_symbol::product, kit_symbol::guarded_product}) {
      INFO(kit.name() << ", " << symbol);
      const ProductCase it(kit, 2, 2, kit.tiling.k, Into::set, random);
      const std::vector<float> want = it.wanted(false);
      for (std::int64_t r = 0; r < it.rows; ++r) std::fill_n(it.c.data() + r * it.c_row, it.columns, not_a_number);
      const Product product = it.product();
      const Tiles tiles(kit);
      kit.find<ProductFn>(symbol)(&product);
      check_all(it.c, want);
    }
}

TEST_CASE("a guarded product takes nothing from where A is zero", "[kit]") {
  std::mt19937 random(3);
  for (const LoadedKit& kit : kits())
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, std::int64_t{6}, std::int64_t{33}})
      for (const Into into : {Into::set, Into::add, Into::scale}) {
        INFO(kit.name() << ", k " << k << ", into " << static_cast<int>(into));
        const ProductCase it(kit, 2, 2, k, into, random);
        // At these k, B holds wild values and A zeros.
        for (std::int64_t i = 0; i < k * it.per; i += 1 + i % 3) {
          for (std::int64_t r = 0; r < it.rows; ++r) it.a.set(r * it.a_row * it.per + i, r % 2 ? -0.0 : 0.0);
          for (std::int64_t n = 0; n < it.columns; ++n) {
            const std::int64_t line = n / kit.tiling.nr * it.b_panel + i / it.per * it.b_k + n % kit.tiling.nr;
            it.b.set(line * it.per + i % it.per, n % 3 == 0 ? not_a_number : n % 3 == 1 ? infinity : -infinity);
          }
        }
        const std::vector<float> want = it.wanted(true);
        CHECK(std::none_of(want.begin(), want.end(), [](float x) { return std::isnan(x); }));
        const Product product = it.product();
        kit.find<ProductFn>(kit_symbol::guarded_product)(&product);
        check_all(it.c, want);
      }
}

TEST_CASE("a guarded product keeps the NaN and infinities of A", "[kit]") {
  std::mt19937 random(4);
  for (const LoadedKit& kit : kits())
    for (const std::int64_t at : {0, 1}) {
      INFO(kit.name() << ", element " << at);
      const ProductCase it(kit, 1, 1, 2, Into::set, random);
      it.a.set(at, not_a_number);
      it.a.set(it.a_row * it.per + at, infinity);
      const Product product = it.product();
      kit.find<ProductFn>(kit_symbol::guarded_product)(&product);
      CHECK(std::isnan(it.c[0]));
      CHECK(!std::isfinite(it.c[it.c_row]));
      CHECK(std::isfinite(it.c[2 * it.c_row]));
    }
}

TEST_CASE("rows are loaded from any strides and padded with zeros", "[kit]") {
  std::mt19937 random(5);
  for (const LoadedKit& kit : kits())
    for (const std::int64_t columns : {0, 1, 5, 16, 31, 32, 33, 65})
      for (const std::int64_t column : {1, 2, -1, -3})
        for (const std::int64_t rows : {0, 1, 3}) {
          INFO(kit.name() << ", " << rows << " x " << columns << ", stride " << column);
          // Rows follow each other; with a negative stride they run from the last to the first.
          const std::int64_t span = std::max<std::int64_t>(0, (columns - 1) * std::abs(column) + 1);
          const std::int64_t row = (column < 0 ? -1 : 1) * (span + 2);
          const Elements from(kit.type, std::max<std::int64_t>(0, rows * (span + 2) - 2));
          fill_small(from, random);
          const std::int64_t first = column < 0 ? std::max<std::int64_t>(0, from.size() - 1) : 0;
          const std::int64_t padded = columns + columns % 7, into_row = padded + 1;
          const Elements into(kit.is_bf16() ? DType::bf16 : DType::f32, rows * into_row);
          std::vector<double> want;
          for (std::int64_t i = 0; i < into.size(); ++i) {
            const std::int64_t c = i % into_row;
            want.push_back(c < columns ? from.get(first + i / into_row * row + c * column) * (kit.is_bf16() ? 1 : 0.375)
                           : c < padded ? 0
                                        : into.get(i));
          }
          const LoadRows load{.from = from.at(first),
                              .row = row,
                              .column = column,
                              .rows = rows,
                              .columns = columns,
                              .padded = padded,
                              .factor = 0.375f,
                              .into = into.data(),
                              .into_row = into_row};
          CHECK(!kit.find<LoadRowsFn>(kit_symbol::load_rows)(&load));
          for (std::int64_t i = 0; i < into.size(); ++i)
            if (into.get(i) != want[static_cast<std::size_t>(i)]) FAIL_CHECK("at " << i);
          CHECK(into.bytes().front_untouched());
        }
}

TEST_CASE("loading says where it met an infinity or NaN", "[kit]") {
  for (const LoadedKit& kit : kits())
    for (const std::int64_t columns : {1, 33, 64, 80})
      for (const std::int64_t column : {1, 2}) {
        const Elements from(kit.type, 2 * columns * column);
        const Elements into(kit.is_bf16() ? DType::bf16 : DType::f32, 2 * columns);
        for (std::int64_t i = 0; i < from.size(); ++i) from.set(i, -1e4);
        const LoadRows load{.from = from.data(),
                            .row = columns * column,
                            .column = column,
                            .rows = 2,
                            .columns = columns,
                            .padded = columns,
                            .factor = 1,
                            .into = into.data(),
                            .into_row = columns};
        auto* function = kit.find<LoadRowsFn>(kit_symbol::load_rows);
        CHECK(!function(&load));
        for (std::int64_t at = 0; at < 2 * columns; ++at)
          for (const float wild : {infinity, -infinity, not_a_number, -not_a_number}) {
            INFO(kit.name() << ", " << columns << " columns, stride " << column << ", " << wild << " at " << at);
            from.set(at * column, wild);
            CHECK(function(&load));
            from.set(at * column, 0);
          }
      }
}

TEST_CASE("every number of 16 bits is loaded as what it is", "[kit]") {
  for (const LoadedKit& kit : kits()) {
    if (kit.type == DType::f32) continue;
    INFO(kit.name());
    const Elements from(kit.type, 65536), into(kit.is_bf16() ? DType::bf16 : DType::f32, 65536);
    for (std::int64_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      std::memcpy(from.at(i), &bits, 2);
    }
    const LoadRows load{.from = from.data(),
                        .row = 0,
                        .column = 1,
                        .rows = 1,
                        .columns = 65536,
                        .padded = 65536,
                        .factor = 1,
                        .into = into.data(),
                        .into_row = 0};
    CHECK(kit.find<LoadRowsFn>(kit_symbol::load_rows)(&load));
    std::size_t wrong = 0;
    for (std::int64_t i = 0; i < 65536; ++i) {
      const auto got = static_cast<float>(into.get(i)), want = static_cast<float>(from.get(i));
      wrong += std::isnan(want) ? !std::isnan(got)
                                : std::bit_cast<std::uint32_t>(got) != std::bit_cast<std::uint32_t>(want);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("rows are stored rounded to nearest even, into any strides", "[kit]") {
  std::mt19937 random(6);
  for (const LoadedKit& kit : kits())
    for (const std::int64_t columns : {0, 1, 15, 16, 33, 100})
      for (const std::int64_t column : {1, 2, -1})
        for (const bool has_factor : {false, true}) {
          INFO(kit.name() << ", " << columns << " columns, stride " << column << ", factor " << has_factor);
          const std::int64_t rows = 3, from_row = columns + 1;
          const std::int64_t span = std::max<std::int64_t>(0, (columns - 1) * std::abs(column) + 1), row = span + 1;
          const Guarded<float> from(static_cast<std::size_t>(2 * from_row + columns)), factor(rows);
          // Random bits (subnormals, infinities, NaN), and ties, which have few bits set.
          for (float& x : from) {
            const std::uint32_t bits = static_cast<std::uint32_t>(random());
            x = std::bit_cast<float>(random() % 2 ? bits : bits & 0xff81f000u);
          }
          for (float& x : factor) x = random() % 2 ? 0.5f : -3;
          const Elements into(kit.type, 2 * row + span), want(kit.type, 2 * row + span);
          const std::int64_t first = column < 0 ? std::max<std::int64_t>(0, span - 1) : 0;
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c)
              want.set(first + r * row + c * column, from[r * from_row + c] * (has_factor ? 2 * factor[r] : 2.0f));
          const StoreRows store{.from = from.data(),
                                .from_row = from_row,
                                .rows = rows,
                                .columns = columns,
                                .factor = has_factor ? factor.data() : nullptr,
                                .scale = 2,
                                .into = into.at(first),
                                .row = row,
                                .column = column};
          kit.find<StoreRowsFn>(kit_symbol::store_rows)(&store);
          for (std::int64_t i = 0; i < into.size(); ++i)
            if (!same(static_cast<float>(into.get(i)), static_cast<float>(want.get(i))))
              FAIL_CHECK("at " << i << ": " << into.get(i) << ", not " << want.get(i));
          CHECK(into.bytes().front_untouched());
        }
}

TEST_CASE("columns are packed along k, with zeros for rows that are not there", "[kit]") {
  for (const LoadedKit& kit : kits())
    for (const std::int64_t rows : {0, 1, 15, 16, 31, 32, 33, 70})
      for (const std::int64_t k : {0, 1, 16, 19, 64}) {
        INFO(kit.name() << ", " << rows << " rows, k " << k);
        const std::int64_t from_row = k + 2, nr = kit.tiling.nr, panels = (rows + nr - 1) / nr, panel = k * nr + 5;
        const Guarded<std::uint32_t> from(static_cast<std::size_t>(rows > 0 ? (rows - 1) * from_row + k : 0));
        for (std::size_t i = 0; i < from.size(); ++i) from.data()[i] = static_cast<std::uint32_t>(i + 1);
        const Guarded<std::uint32_t> into(static_cast<std::size_t>(panels > 0 ? (panels - 1) * panel + k * nr : 0));
        std::vector<std::uint32_t> want(into.begin(), into.end());
        for (std::int64_t p = 0; p < panels; ++p)
          for (std::int64_t i = 0; i < k; ++i)
            for (std::int64_t n = 0; n < nr; ++n)
              want[static_cast<std::size_t>(p * panel + i * nr + n)] = p * nr + n < rows
                                                                           ? from[(p * nr + n) * from_row + i]
                                                                           : 0;
        const PackColumns pack{
            .from = from.data(), .from_row = from_row, .rows = rows, .k = k, .into = into.data(), .panel = panel};
        kit.find<PackColumnsFn>(kit_symbol::pack_columns)(&pack);
        CHECK(std::equal(want.begin(), want.end(), into.begin()));
        CHECK(into.front_untouched());
      }
}

TEST_CASE("rows are packed by panels, bf16 two rows a unit", "[kit]") {
  for (const LoadedKit& kit : kits())
    for (const std::int64_t rows : {0, 1, 2, 7, 16})
      for (const std::int64_t panels : {0, 1, 3}) {
        INFO(kit.name() << ", " << rows << " rows, " << panels << " panels");
        const std::int64_t nr = kit.tiling.nr, per = per_unit(kit.unit), columns = panels * nr, from_row = columns + 3;
        const std::int64_t units = (rows + per - 1) / per, panel = units * nr + 5;
        const DType element = kit.is_bf16() ? DType::bf16 : DType::f32;
        const Elements from(element, rows > 0 ? (rows - 1) * from_row + columns : 0);
        for (std::int64_t i = 0; i < from.size(); ++i) from.set(i, static_cast<double>(i % 251 + 1));
        const Elements into(element, panels > 0 ? ((panels - 1) * panel + units * nr) * per : 0);
        std::vector<double> want;
        for (std::int64_t i = 0; i < into.size(); ++i) {
          const std::int64_t p = i / per / panel, u = i / per % panel / nr, n = i / per % panel % nr,
                             r = u * per + i % per;
          want.push_back(u >= units ? into.get(i) : r < rows ? from.get(r * from_row + p * nr + n) : 0);
        }
        const PackRows pack{.from = from.data(),
                            .from_row = from_row,
                            .rows = rows,
                            .columns = columns,
                            .into = into.data(),
                            .panel = panel};
        kit.find<PackRowsFn>(kit_symbol::pack_rows)(&pack);
        for (std::int64_t i = 0; i < into.size(); ++i)
          if (into.get(i) != want[static_cast<std::size_t>(i)]) FAIL_CHECK("at " << i);
        CHECK(into.bytes().front_untouched());
      }
}

TEST_CASE("a row's dot has the bits of the product of its two rows", "[kit]") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const LoadedKit& kit : kits())
    for (const std::int64_t rows : {0, 1, 3, 4, 7, 12})
      for (const std::int64_t columns : {0, 1, 15, 64, 121}) {
        if (kit.is_bf16()) continue;  // their products sum pairs
        INFO(kit.name() << ", " << rows << " x " << columns);
        const std::int64_t row = columns + 3, nr = kit.tiling.nr, mr = kit.tiling.mr;
        const auto size = static_cast<std::size_t>(rows * row);
        const Guarded<float> a(size), b(size), into(static_cast<std::size_t>(rows));
        for (float& x : a) x = normal(random);
        for (float& x : b) x = normal(random);
        const RowDots dots{
            .a = a.data(), .b = b.data(), .row = row, .rows = rows, .columns = columns, .into = into.data()};
        kit.find<RowDotsFn>(kit_symbol::row_dots)(&dots);
        CHECK(into.front_untouched());
        for (std::int64_t r = 0; r < rows; ++r) {
          // One block of a product, whose rows are a's and whose columns are b's.
          std::vector<float> left(static_cast<std::size_t>(mr * columns)),
              right(static_cast<std::size_t>(columns * nr)), c(static_cast<std::size_t>(mr * nr));
          for (std::int64_t i = 0; i < columns; ++i) {
            left[static_cast<std::size_t>(i)] = a[r * row + i];
            right[static_cast<std::size_t>(i * nr)] = b[r * row + i];
          }
          const Product product{.a = left.data(),
                                .a_row = columns,
                                .b = right.data(),
                                .b_k = nr,
                                .b_panel = columns * nr,
                                .c = c.data(),
                                .c_row = nr,
                                .groups = 1,
                                .panels = 1,
                                .k = columns,
                                .keep = nullptr};
          kit.find<ProductFn>(kit_symbol::product)(&product);
          CHECK(into[r] == c[0]);
        }
      }
}

TEST_CASE("matrices are transposed", "[kit]") {
  for (const LoadedKit& kit : kits())
    for (const auto& [rows, columns] : {std::pair(0, 16), std::pair(16, 16), std::pair(48, 32), std::pair(16, 80)}) {
      INFO(kit.name() << ", " << rows << " x " << columns);
      const DType element = kit.is_bf16() ? DType::bf16 : DType::f32;
      const std::int64_t from_row = columns + 1, into_row = rows + 3;
      const Elements from(element, rows > 0 ? (rows - 1) * from_row + columns : 0);
      for (std::int64_t i = 0; i < from.size(); ++i) from.set(i, static_cast<double>(i % 251 + 1));
      const Elements into(element, (columns - 1) * into_row + rows);
      std::vector<double> want;
      for (std::int64_t i = 0; i < into.size(); ++i)
        want.push_back(i % into_row < rows ? from.get(i % into_row * from_row + i / into_row) : into.get(i));
      const Transpose transpose{.from = from.data(),
                                .from_row = from_row,
                                .rows = rows,
                                .columns = columns,
                                .into = into.data(),
                                .into_row = into_row};
      kit.find<TransposeFn>(kit_symbol::transpose)(&transpose);
      for (std::int64_t i = 0; i < into.size(); ++i)
        if (into.get(i) != want[static_cast<std::size_t>(i)]) FAIL_CHECK("at " << i);
      CHECK(into.bytes().front_untouched());
    }
}
