// python/core/core.cpp — attune._core: the handles of attune/c.h as objects of Python, calls without the GIL
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "python/core/borrowed.h"
#include "python/core/handle.h"
#include "python/core/jax.h"
#include "python/core/quick.h"
#include "python/core/quick_torch.h"

namespace attune::python {
namespace {

using Text = std::optional<nb::str>;

/// Raises what the C ABI says, as attune.Error or attune.Bug.
void check(attune_error* error) {
  if (!error) return;
  const std::unique_ptr<attune_error, decltype(&attune_error_free)> owned(error, attune_error_free);
  attune_said said{};
  said.size = sizeof said;
  attune_error_read(error, &said);
  const auto text = [](const char* bytes) {
    return nb::steal(PyUnicode_DecodeUTF8(bytes, static_cast<Py_ssize_t>(std::strlen(bytes)), "replace"));
  };
  const nb::object exception = nb::module_::import_("attune._errors")
                                   .attr("said")(said.bug != 0, said.line, text(said.code), text(said.problem),
                                                 text(said.name), text(said.text), text(said.why), text(said.fix),
                                                 text(said.message), said.begin, said.end);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

/// A text for the library, which reads UTF-8 up to a byte of 0: one that has such a byte, or no UTF-8, is refused.
std::string utf8(const nb::str& text) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes && std::strlen(bytes) == static_cast<std::size_t>(size)) return bytes;
  PyErr_Clear();
  const nb::object exception = nb::module_::import_("attune._errors").attr("bad_character")(text);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

/// A text that the library gave.
std::string taken(char* text) {
  const std::unique_ptr<char, decltype(&attune_string_free)> owned(text, attune_string_free);
  return text;
}

/// An exception of a function of Python that C called; it is raised when C has returned.
struct Raised {
  PyObject* exception = nullptr;  // a reference

  Raised() = default;
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;
  ~Raised() { Py_XDECREF(exception); }

  void keep(nb::python_error& error) {
    if (!exception) exception = nb::borrow(error.value()).release().ptr();
  }
  /// The call's own error is then of no interest.
  void raise(attune_error* instead_of) {
    if (!exception) return;
    attune_error_free(instead_of);
    const nb::object raised = nb::steal(exception);
    exception = nullptr;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
    throw nb::python_error();
  }
};

/// How ranks exchange bytes, by functions of Python: exchange(send, receive, stream) with lists of (peer, memoryview),
/// sum(values, stream) with a memoryview of floats, and stop(). On a stream there are addresses of its device in place
/// of views. Or by NCCL.
struct Transport {
  int rank, count;
  nb::object exchange{}, sum{}, stop{};
  Raised raised{};
  attune_transport by_nccl{};

  Transport(int own, int all, nb::object exchanges, nb::object sums, nb::object stops)
      : rank(own), count(all), exchange(std::move(exchanges)), sum(std::move(sums)), stop(std::move(stops)) {}
  explicit Transport(const attune_transport& nccl) : rank(nccl.rank), count(nccl.count), by_nccl(nccl) {}
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  ~Transport() {
    // Exchanges on streams may have to end first.
    const nb::gil_scoped_release waiting;
    attune_nccl_free(&by_nccl);
  }

  attune_transport given() {
    if (by_nccl.exchange) return by_nccl;
    attune_transport out{};
    out.size = sizeof out;
    out.rank = rank, out.count = count, out.user = this;
    if (!exchange.is_none()) out.exchange = exchanged;
    if (!sum.is_none()) out.sum = summed;
    if (!stop.is_none()) out.stop = stopped;
    return out;
  }

 private:
  /// Memory of C for as long as a function of Python runs; views that it keeps show nothing afterwards.
  struct Views {
    std::vector<nb::object> all{};
    nb::object of(void* data, std::size_t bytes) {
      static char none = 0;
      all.push_back(nb::steal(PyMemoryView_FromMemory(data ? static_cast<char*>(data) : &none,
                                                      static_cast<Py_ssize_t>(bytes), PyBUF_WRITE)));
      if (!all.back()) throw nb::python_error();
      return all.back();
    }
    nb::list of(const attune_part* parts, std::size_t count, bool on_device) {
      nb::list out;
      for (std::size_t i = 0; i < count; ++i)
        if (on_device) {
          out.append(nb::make_tuple(parts[i].peer, reinterpret_cast<std::uintptr_t>(parts[i].data), parts[i].bytes));
        } else {
          out.append(nb::make_tuple(parts[i].peer, of(parts[i].data, parts[i].bytes)));
        }
      return out;
    }
    ~Views() {
      for (const nb::object& view : all)
        if (nb::steal(PyObject_CallMethod(view.ptr(), "release", nullptr)).ptr() == nullptr) PyErr_Clear();
    }
  };

  template <class Body>
  static std::int32_t guarded(void* user, const Body& body) {
    auto& self = *static_cast<Transport*>(user);
    const nb::gil_scoped_acquire gil;
    try {
      Views views;
      body(self, views);
    } catch (nb::python_error& error) {
      self.raised.keep(error);
      return 1;
    }
    return 0;
  }
  static std::int32_t exchanged(void* user, const attune_part* send, std::size_t n_send, const attune_part* receive,
                                std::size_t n_receive, void* stream) {
    return guarded(user, [&](Transport& self, Views& views) {
      self.exchange(views.of(send, n_send, stream), views.of(receive, n_receive, stream),
                    reinterpret_cast<std::uintptr_t>(stream));
    });
  }
  static std::int32_t summed(void* user, void* values, std::size_t count, std::int32_t bytes, void* stream) {
    return guarded(user, [&](Transport& self, Views& views) {
      if (stream) {
        self.sum(nb::make_tuple(reinterpret_cast<std::uintptr_t>(values), count, bytes),
                 reinterpret_cast<std::uintptr_t>(stream));
        return;
      }
      const nb::object as_floats =
          views.of(values, count * static_cast<std::size_t>(bytes)).attr("cast")(bytes == 8 ? "d" : "f");
      views.all.insert(views.all.begin(), as_floats);
      self.sum(as_floats, reinterpret_cast<std::uintptr_t>(stream));
    });
  }
  static void stopped(void* user) {
    guarded(user, [](Transport& self, Views&) { self.stop(); });
  }
};

/// What a call may use, and the functions of Python that it calls back. An exception in one of them, or a signal such
/// as Ctrl-C, stops the call and is raised when it has returned.
struct With {
  attune_with with{};
  nb::object progress{}, loop{};
  Transport* ranks = nullptr;
  Raised raised{};

  With() { with.size = sizeof with; }
  With(const With&) = delete;
  With& operator=(const With&) = delete;

  static std::int32_t progressed(void* user, double done) {
    auto& self = *static_cast<With*>(user);
    const nb::gil_scoped_acquire gil;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!self.progress.is_none()) self.progress(done);
    } catch (nb::python_error& error) {
      self.raised.keep(error);
      return 1;
    }
    return self.raised.exception != nullptr;
  }

  static void looped(void* user, std::int64_t count, attune_task task, void* run) {
    auto& self = *static_cast<With*>(user);
    const nb::gil_scoped_acquire gil;
    std::vector<char> done(static_cast<std::size_t>(count));
    const auto one = [&](std::int64_t i, std::int32_t worker) {
      if (i < 0 || i >= count || done[static_cast<std::size_t>(i)]) throw nb::value_error("there is no such task left");
      done[static_cast<std::size_t>(i)] = 1;
      const nb::gil_scoped_release running;
      task(run, i, worker);
    };
    try {
      self.loop(count, nb::cpp_function(one));
    } catch (nb::python_error& error) {
      self.raised.keep(error);
    }
    // Tasks that the loop left out: the call must end with all of them done.
    for (std::int64_t i = 0; i < count; ++i)
      if (!done[static_cast<std::size_t>(i)]) one(i, 0);
  }

  /// Raises what a callback raised.
  void finish(attune_error* error) {
    raised.raise(error);
    if (ranks) ranks->raised.raise(error);
    check(error);
  }
};

struct Cover {
  attune_cover* handle = nullptr;
  nb::object memory{};  // the workspace that holds the lists
  explicit Cover(attune_cover* given) : handle(given) {}
  Cover(const Cover&) = delete;
  Cover& operator=(const Cover&) = delete;
  ~Cover() { attune_cover_free(handle); }
};

/// Who holds which positions. Keeps the functions that its exchanges call.
struct Shares {
  attune_shares* handle = nullptr;
  nb::object transport;

  /// Takes the handle that `make` writes.
  template <class Make>
  Shares(nb::object with, const Make& make) : transport(std::move(with)) {
    attune_error* error = nullptr;
    {
      const nb::gil_scoped_release running;  // ranks wait for each other
      error = make(&handle);
    }
    ranks().raised.raise(error);
    check(error);
  }
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;
  ~Shares() { attune_shares_free(handle); }

  Transport& ranks() const { return nb::cast<Transport&>(transport); }

  std::vector<std::pair<std::int64_t, std::int64_t>> of(int rank, bool keys) const {
    std::size_t count = 0;
    check(attune_shares_of(handle, rank, keys, nullptr, 0, &count));
    std::vector<attune_stretch> all(count);
    check(attune_shares_of(handle, rank, keys, all.data(), all.size(), nullptr));
    std::vector<std::pair<std::int64_t, std::int64_t>> out;
    for (const attune_stretch& s : all) out.emplace_back(s.begin, s.end);
    return out;
  }
  nb::object positions(int rank) const {
    std::size_t count = 0;
    check(attune_shares_positions(handle, rank, nullptr, 0, &count));
    std::vector<std::int32_t> all(count);
    check(attune_shares_positions(handle, rank, all.data(), all.size(), nullptr));
    return nb::steal(PyMemoryView_FromObject(nb::bytes(all.data(), all.size() * sizeof(std::int32_t)).ptr()))
        .attr("cast")("i");
  }
  std::size_t received(int rank, std::size_t layer) const {
    std::size_t bytes = 0;
    check(attune_shares_received(handle, rank, layer, &bytes));
    return bytes;
  }
  std::string explain() const {
    char* text = nullptr;
    check(attune_shares_explain(handle, &text));
    return taken(text);
  }
};

/// Memory that attune owns, for libraries that only take arrays made elsewhere: it speaks DLPack.
struct Memory {
  attune_tensor* tensor = nullptr;
  explicit Memory(attune_tensor* given) : tensor(given) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { attune_dealloc(tensor); }
};

/// DLPack's managed tensor.
struct Managed {
  attune_tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

nb::object exported(nb::object self) {
  auto* managed = new Managed{*nb::cast<const Memory&>(self).tensor, nb::object(self).release().ptr(), nullptr};
  managed->deleter = [](Managed* done) {
    const nb::gil_scoped_acquire gil;
    nb::steal(static_cast<PyObject*>(done->context)).reset();
    delete done;
  };
  return nb::steal(PyCapsule_New(managed, "dltensor", [](PyObject* capsule) {
    if (std::strcmp(PyCapsule_GetName(capsule), "dltensor") != 0) return;  // somebody took it
    auto* unused = static_cast<Managed*>(PyCapsule_GetPointer(capsule, "dltensor"));
    unused->deleter(unused);
  }));
}

/// A call's arguments as the C ABI takes them, borrowed while this lives.
struct Call {
  attune_call call{};
  With with;
  bool has_with = false;
  Borrowed fixed[tensors];
  std::unique_ptr<Borrowed[]> captured, grads;
  std::vector<const attune_tensor*> captured_at, grads_at;
  std::vector<double> params;
  Py_buffer workspace{};
  bool has_workspace = false;
  Borrowed device_workspace;

  ~Call() {
    if (has_workspace) PyBuffer_Release(&workspace);
  }
};

nb::object interned(const std::string& name) { return nb::steal(PyUnicode_InternFromString(name.c_str())); }

struct Attention : Handle {
  bool recording = false;  // its caller records gradients, and may pass tensors that do

  Attention(const std::vector<Text>& parts, const std::vector<std::pair<nb::str, nb::str>>& lets,
            const std::vector<std::tuple<nb::str, std::string, int>>& captured,
            const std::vector<std::pair<nb::str, std::string>>& parameters, std::optional<double> scale, int target,
            int exact) {
    for (const auto& [name, kind, rank] : captured)
      captures.push_back({utf8(name), interned(utf8(name)), kind[0], rank});
    for (const auto& [name, kind] : parameters) params.push_back({utf8(name), interned(utf8(name)), kind[0], 0});
    std::vector<attune_name> names, numbers;
    for (const Declared& c : captures) names.push_back({c.name.c_str(), c.kind, c.rank});
    for (const Declared& p : params) numbers.push_back({p.name.c_str(), p.kind, 0});
    std::vector<std::pair<std::string, std::string>> let_texts;
    for (const auto& [name, text] : lets) let_texts.emplace_back(utf8(name), utf8(text));
    std::vector<attune_let> defined;
    for (const auto& [name, text] : let_texts) defined.push_back({name.c_str(), {text.c_str(), nullptr, 0}});
    std::optional<std::string> texts[4];
    for (std::size_t i = 0; i < std::size(texts); ++i)
      if (parts[i]) texts[i] = utf8(*parts[i]);
    const auto text = [&](std::size_t i) { return attune_text{texts[i] ? texts[i]->c_str() : nullptr, nullptr, 0}; };
    attune_what what{};
    what.size = sizeof what;
    what.target = target;
    what.exact = exact;
    what.score = text(0), what.mask = text(1), what.prob = text(2), what.sink = text(3);
    what.scale = scale ? &*scale : nullptr;
    what.captures = names.data(), what.n_captures = names.size();
    what.params = numbers.data(), what.n_params = numbers.size();
    what.lets = defined.data(), what.n_lets = defined.size();
    attune_error* error = nullptr;
    {
      const nb::gil_scoped_release running;
      error = attune_new(&what, &attention);
    }
    check(error);
  }

  /// `options` is None, or (q_offset, max_q_len, max_kv_len, workers, stream, workspace, cover, progress, parallel_for,
  /// signals), then (kv_offset, piece) of a forward if they are not 0, then (shares, sum_captured) of a call over
  /// ranks.
  void fill(Call& c, int pass, const nb::tuple& given, const nb::tuple& captured, nb::handle grads,
            const nb::tuple& numbers, nb::handle options) const {
    c.call.size = sizeof c.call;
    c.call.pass = pass;
    if (!options.is_none()) set_options(c, nb::cast<nb::tuple>(options));
    void* stream = c.with.with.stream;
    for (std::size_t i = 0; i < given.size(); ++i) {
      c.fixed[i].take(given[i], rows[i].name, rows[i].written & (1 << pass), stream, recording);
      c.call.*rows[i].member = c.fixed[i].tensor();
    }
    const auto bind = [&](const nb::tuple& list, std::unique_ptr<Borrowed[]>& held,
                          std::vector<const attune_tensor*>& at, bool written) {
      if (!list.size()) return;
      held = std::make_unique<Borrowed[]>(list.size());
      for (std::size_t i = 0; i < list.size(); ++i) {
        held[i].take(list[i], captures[i].name.c_str(), written, stream, recording);
        at.push_back(held[i].tensor());
      }
    };
    bind(captured, c.captured, c.captured_at, false);
    c.call.captures = c.captured_at.data(), c.call.n_captures = c.captured_at.size();
    if (!grads.is_none()) {
      bind(nb::cast<nb::tuple>(grads), c.grads, c.grads_at, true);
      c.call.captured_grads = c.grads_at.data(), c.call.n_captured_grads = c.grads_at.size();
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) c.params.push_back(nb::cast<double>(numbers[i]));
    c.call.params = c.params.data(), c.call.n_params = c.params.size();
  }

  static void set_options(Call& c, const nb::tuple& o) {
    c.has_with = true;
    attune_with& with = c.with.with;
    c.call.q_offset = nb::cast<std::int32_t>(o[0]);
    c.call.max_q_len = nb::cast<std::int64_t>(o[1]);
    c.call.max_kv_len = nb::cast<std::int64_t>(o[2]);
    with.workers = nb::cast<std::int32_t>(o[3]);
    with.stream = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(o[4]));
    if (nb::handle workspace = o[5]; !workspace.is_none()) {
      if (PyObject_CheckBuffer(workspace.ptr())) {
        if (PyObject_GetBuffer(workspace.ptr(), &c.workspace, PyBUF_WRITABLE) != 0) {
          PyErr_Clear();
          refuse("tensor-read-only", "`workspace` cannot be written", "it is read-only, or its elements do not touch",
                 "pass a contiguous array of your own");
        }
        c.has_workspace = true;
        with.workspace = c.workspace.buf;
        with.workspace_bytes = static_cast<std::size_t>(c.workspace.len);
      } else {
        c.device_workspace.take(workspace, "workspace", true, with.stream);
        const attune_tensor& t = *c.device_workspace.tensor();
        std::size_t bytes = t.dtype.bits / 8;
        for (int i = 0; i < t.ndim; ++i) bytes *= static_cast<std::size_t>(t.shape[i]);
        with.workspace = static_cast<char*>(t.data) + t.byte_offset;
        with.workspace_bytes = bytes;
      }
    }
    if (nb::handle cover = o[6]; !cover.is_none()) with.cover = nb::cast<const Cover&>(cover).handle;
    c.with.progress = o[7];
    c.with.loop = o[8];
    with.user = &c.with;
    if (!c.with.progress.is_none() || nb::cast<bool>(o[9])) with.progress = With::progressed;
    if (!c.with.loop.is_none()) with.parallel_for = With::looped;
    if (o.size() == 10) return;
    c.call.kv_offset = nb::cast<std::int32_t>(o[10]);
    c.call.piece = nb::cast<std::int64_t>(o[11]);
    if (o.size() == 12) return;
    const auto& shares = nb::cast<const Shares&>(o[12]);
    with.shares = shares.handle;
    c.with.ranks = &shares.ranks();
    c.call.own_captured_grads = !nb::cast<bool>(o[13]);
  }

  void run(int pass, const nb::tuple& given, const nb::tuple& captured, nb::handle grads, const nb::tuple& numbers,
           nb::handle options) const {
    Call c;
    fill(c, pass, given, captured, grads, numbers, options);
    attune_error* error = nullptr;
    {
      const nb::gil_scoped_release running;
      error = attune_run(attention, &c.call, c.has_with ? &c.with.with : nullptr);
    }
    c.with.finish(error);
  }

  /// The least time of a call in C alone, in seconds, over rounds of `count` calls: for attune.bench.
  double least(int rounds, int count, const nb::tuple& given, const nb::tuple& captured) const {
    Call c;
    fill(c, ATTUNE_FORWARD, given, captured, nb::none(), nb::tuple(), nb::none());
    double best = 1;
    for (int round = 0; round < rounds; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < count; ++i) check(attune_run(attention, &c.call, nullptr));
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count() / count);
    }
    return best;
  }

  std::pair<std::size_t, std::size_t> prepare(int pass, const nb::tuple& given, const nb::tuple& captured,
                                              nb::handle grads, const nb::tuple& numbers, nb::handle options) const {
    Call c;
    fill(c, pass, given, captured, grads, numbers, options);
    std::size_t workspace = 0, cover = 0;
    attune_error* error = nullptr;
    {
      const nb::gil_scoped_release running;
      error = attune_prepare(attention, &c.call, c.has_with ? &c.with.with : nullptr, &workspace, &cover);
    }
    c.with.finish(error);
    return {workspace, cover};
  }

  nb::object cover(const nb::tuple& given, const nb::tuple& captured, const nb::tuple& numbers,
                   nb::handle options) const {
    Call c;
    fill(c, ATTUNE_FORWARD, given, captured, nb::none(), numbers, options);
    attune_cover* lists = nullptr;
    attune_error* error = nullptr;
    {
      const nb::gil_scoped_release running;
      error = attune_cover_new(attention, &c.call, c.has_with ? &c.with.with : nullptr, &lists);
    }
    c.with.finish(error);
    if (!lists) return nb::none();
    auto made = std::make_unique<Cover>(lists);
    if (!options.is_none()) made->memory = nb::cast<nb::tuple>(options)[5];
    return nb::cast(made.release(), nb::rv_policy::take_ownership);
  }

  std::string explain() const {
    char* text = nullptr;
    check(attune_explain(attention, &text));
    return taken(text);
  }
  std::string describe() const {
    char* json = nullptr;
    check(attune_describe(attention, &json));
    return taken(json);
  }

  std::tuple<nb::bytes, std::int64_t, std::int64_t> tiles(const std::tuple<std::int64_t, std::int64_t>& lengths,
                                                          const std::tuple<std::int64_t, std::int64_t>& entry,
                                                          const std::tuple<std::int64_t, std::int64_t>& tile,
                                                          std::int32_t q_offset, const nb::tuple& captured,
                                                          const nb::tuple& numbers) const {
    Call c;
    fill(c, ATTUNE_FORWARD, nb::tuple(), captured, nb::none(), numbers, nb::none());
    const attune_picture p = picture(c, lengths, entry, tile, q_offset);
    std::int64_t rows_of = 0, cols = 0;
    check(attune_tiles(attention, &p, nullptr, 0, &rows_of, &cols));
    std::vector<std::uint8_t> out(static_cast<std::size_t>(rows_of * cols));
    attune_error* error = nullptr;
    {
      const nb::gil_scoped_release running;
      error = attune_tiles(attention, &p, out.data(), out.size(), &rows_of, &cols);
    }
    check(error);
    return {nb::bytes(out.data(), out.size()), rows_of, cols};
  }

  std::string draw(const std::tuple<std::int64_t, std::int64_t>& lengths,
                   const std::tuple<std::int64_t, std::int64_t>& entry,
                   const std::tuple<std::int64_t, std::int64_t>& tile, std::int32_t q_offset, const nb::tuple& captured,
                   const nb::tuple& numbers, nb::handle q, nb::handle k, int panels) const {
    Call c;
    fill(c, ATTUNE_FORWARD, nb::make_tuple(nb::borrow(q), nb::borrow(k)), captured, nb::none(), numbers, nb::none());
    attune_drawing d{};
    d.size = sizeof d;
    d.panels = panels;
    const attune_picture p = picture(c, lengths, entry, tile, q_offset);
    d.picture = &p;
    d.q = c.call.q, d.k = c.call.k;
    char* svg = nullptr;
    attune_error* error = nullptr;
    {
      const nb::gil_scoped_release running;
      error = attune_draw(attention, &d, &svg);
    }
    check(error);
    return taken(svg);
  }

 private:
  static attune_picture picture(const Call& c, const std::tuple<std::int64_t, std::int64_t>& lengths,
                                const std::tuple<std::int64_t, std::int64_t>& entry,
                                const std::tuple<std::int64_t, std::int64_t>& tile, std::int32_t q_offset) {
    attune_picture p{};
    p.size = sizeof p;
    p.q_offset = q_offset;
    std::tie(p.q_len, p.kv_len) = lengths;
    std::tie(p.batch, p.head) = entry;
    std::tie(p.tile_q, p.tile_kv) = tile;
    p.captures = c.call.captures, p.n_captures = c.call.n_captures;
    p.params = c.call.params, p.n_params = c.call.n_params;
    return p;
  }
};

/// Shares for calls of attentions: each a tuple (attention, tensors, captures, parameters). `options` as of fill.
/// `how`: (deal, travel, groups, grain, per_node, own_gb_s, node_gb_s, tflops, memory_gb_s, latency_us); None keeps the
/// deal of `before`.
Shares* shares_of(nb::object with, const nb::list& layers, const nb::tuple& options, nb::handle how,
                  nb::handle before) {
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<const attune_attention*> attentions;
  std::vector<const attune_call*> at;
  for (const nb::handle layer : layers) {
    const auto parts = nb::cast<nb::tuple>(layer);
    const auto& attention = nb::cast<const Attention&>(parts[0]);
    calls.push_back(std::make_unique<Call>());
    attention.fill(*calls.back(), ATTUNE_FORWARD, nb::cast<nb::tuple>(parts[1]), nb::cast<nb::tuple>(parts[2]),
                   nb::none(), nb::cast<nb::tuple>(parts[3]), options);
    attentions.push_back(attention.attention);
    at.push_back(&calls.back()->call);
  }
  if (!before.is_none()) {
    const auto& dealt = nb::cast<const Shares&>(before);
    return new Shares(dealt.transport, [&](attune_shares** into) {
      return attune_shares_new(attentions.data(), at.data(), at.size(), nullptr, nullptr, dealt.handle, into);
    });
  }
  const auto chosen = nb::cast<nb::tuple>(how);
  attune_how h{};
  h.size = sizeof h;
  h.deal = nb::cast<std::int32_t>(chosen[0]), h.travel = nb::cast<std::int32_t>(chosen[1]);
  h.groups = nb::cast<std::int32_t>(chosen[2]), h.grain = nb::cast<std::int64_t>(chosen[3]);
  h.per_node = nb::cast<std::int32_t>(chosen[4]);
  double* const rates[] = {&h.own_gb_s, &h.node_gb_s, &h.tflops, &h.memory_gb_s, &h.latency_us};
  for (std::size_t i = 0; i < std::size(rates); ++i) *rates[i] = nb::cast<double>(chosen[5 + i]);
  const attune_transport transport = nb::cast<Transport&>(with).given();
  return new Shares(with, [&](attune_shares** into) {
    return attune_shares_new(attentions.data(), at.data(), at.size(), &transport, &h, nullptr, into);
  });
}

nb::bytes nccl_id() {
  char id[ATTUNE_NCCL_ID];
  check(attune_nccl_id(id));
  return nb::bytes(id, sizeof id);
}

/// By an id, or by the address of a communicator.
Transport* nccl(const std::optional<nb::bytes>& id, std::uintptr_t communicator, const std::array<int, 3>& place,
                double seconds) {
  attune_nccl how{};
  how.size = sizeof how;
  how.rank = place[0], how.count = place[1], how.device = place[2];
  how.id = id ? id->c_str() : nullptr;
  how.communicator = reinterpret_cast<void*>(communicator);
  how.seconds = seconds;
  attune_transport made{};
  made.size = sizeof made;
  attune_error* error = nullptr;
  {
    const nb::gil_scoped_release running;  // ranks wait for each other
    error = attune_nccl_new(&how, &made);
  }
  check(error);
  return new Transport(made);
}

/// Calls a function of Python with each fact, as JSON, until it is stopped or gone.
struct Watch {
  attune_watch* handle = nullptr;
  nb::object function;
  explicit Watch(nb::object f) : function(std::move(f)) {
    check(attune_watch_on(
        [](void* user, const char* json) {
          const nb::gil_scoped_acquire gil;
          try {
            static_cast<Watch*>(user)->function(json);
          } catch (nb::python_error& error) {
            error.discard_as_unraisable("attune.watch");
          }
        },
        this, &handle));
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { stop(); }
  void stop() {
    attune_watch* on = handle;
    handle = nullptr;
    const nb::gil_scoped_release waiting;  // for a fact that is being told
    attune_watch_off(on);
  }
};

/// New keys and values to their places in a cache. `given`: k_new, v_new, k, v, pages, kv_len and cu_seqlens, or None.
void append(const nb::tuple& given, double k_scale, double v_scale, std::uintptr_t stream, std::int32_t workers) {
  struct Row {
    const char* name;
    const attune_tensor* attune_new_keys::*member;
    bool written;
  };
  constexpr Row rows_of_keys[] = {{"k_new", &attune_new_keys::k_new, false},
                                  {"v_new", &attune_new_keys::v_new, false},
                                  {"k", &attune_new_keys::k, true},
                                  {"v", &attune_new_keys::v, true},
                                  {"pages", &attune_new_keys::pages, false},
                                  {"kv_len", &attune_new_keys::kv_len, false},
                                  {"cu_seqlens", &attune_new_keys::cu_new, false}};
  attune_with with{};
  with.size = sizeof with;
  with.stream = reinterpret_cast<void*>(stream);
  with.workers = workers;
  attune_new_keys keys{};
  keys.size = sizeof keys;
  keys.k_scale = k_scale, keys.v_scale = v_scale;
  Borrowed borrowed[std::size(rows_of_keys)];
  for (std::size_t i = 0; i < std::size(rows_of_keys); ++i) {
    borrowed[i].take(given[i], rows_of_keys[i].name, rows_of_keys[i].written, with.stream);
    keys.*rows_of_keys[i].member = borrowed[i].tensor();
  }
  attune_error* error = nullptr;
  {
    const nb::gil_scoped_release running;
    error = attune_append(&keys, &with);
  }
  check(error);
}

std::string machine() {
  char* json = nullptr;
  attune_error* error = nullptr;
  {
    const nb::gil_scoped_release starting;  // the driver may take a second
    error = attune_machine(&json);
  }
  check(error);
  return taken(json);
}

std::string compile(const std::string& manifest, const nb::bytes& bundle, int jobs, nb::object progress) {
  With with;
  with.progress = std::move(progress);
  attune_job job{};
  job.size = sizeof job;
  job.jobs = jobs;
  job.manifest = manifest.c_str();
  job.bundle = bundle.c_str();
  job.progress = [](void* user, double done, const char* row) -> std::int32_t {
    auto& self = *static_cast<With*>(user);
    const nb::gil_scoped_acquire gil;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!self.progress.is_none()) self.progress(done, row);
    } catch (nb::python_error& error) {
      self.raised.keep(error);
      return 1;
    }
    return 0;
  };
  job.user = &with;
  char* report = nullptr;
  attune_error* error = nullptr;
  {
    const nb::gil_scoped_release running;
    error = attune_compile(&job, &report);
  }
  with.finish(error);
  return taken(report);
}

const Handle* handle_of(nb::handle object) {
  static const nb::handle type = nb::type<Attention>();
  return object.type().is(type) ? nb::inst_ptr<Attention>(object) : nullptr;
}

nb::object empty(nb::handle like, const std::vector<std::int64_t>& shape, bool f32) {
  Borrowed from;
  from.take(like, "q", false, nullptr);
  attune_tensor wanted = *from.tensor();
  std::vector<std::int64_t> extents = shape;
  wanted.ndim = static_cast<std::int32_t>(shape.size());
  wanted.shape = extents.data();
  wanted.strides = nullptr;
  if (f32) wanted.dtype = {ATTUNE_FLOAT, 32, 1};
  attune_tensor* made = nullptr;
  check(attune_alloc(&wanted, &made));
  return nb::cast(new Memory(made), nb::rv_policy::take_ownership);
}

}  // namespace

void refuse(const char* code, const std::string& problem, const std::string& why, const std::string& fix) {
  const nb::object exception = nb::module_::import_("attune._errors").attr("Error")(code, problem, why, fix);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace attune::python

NB_MODULE(_core, m) {
  namespace nb = nanobind;
  using namespace attune::python;
  nb::set_leak_warnings(false);  // at exit the order of modules' ends is not ours
  nb::class_<Cover>(m, "Cover");
  nb::class_<Transport>(m, "Transport")
      .def(nb::init<int, int, nb::object, nb::object, nb::object>(), nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg().none(), nb::arg().none())
      .def_ro("rank", &Transport::rank)
      .def_ro("count", &Transport::count);
  m.def("nccl_id", &nccl_id);
  m.def("nccl", &nccl, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::rv_policy::take_ownership);
  nb::class_<Shares>(m, "Shares")
      .def("of", &Shares::of)
      .def("positions", &Shares::positions)
      .def("received", &Shares::received)
      .def("explain", &Shares::explain);
  m.def("shares", &shares_of, nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
        nb::rv_policy::take_ownership);
  nb::class_<Memory>(m, "Memory")
      .def("__dlpack__", [](nb::object self, nb::kwargs) { return exported(std::move(self)); })
      .def("__dlpack_device__", [](const Memory& self) {
        return std::pair(static_cast<int>(self.tensor->device.device_type),
                         static_cast<int>(self.tensor->device.device_id));
      });
  nb::class_<Watch>(m, "Watch").def(nb::init<nb::object>()).def("stop", &Watch::stop);
  nb::class_<Attention>(m, "Attention")
      .def(nb::init<const std::vector<Text>&, const std::vector<std::pair<nb::str, nb::str>>&,
                    const std::vector<std::tuple<nb::str, std::string, int>>&,
                    const std::vector<std::pair<nb::str, std::string>>&, std::optional<double>, int, int>(),
           nb::arg("parts"), nb::arg("lets"), nb::arg("captures"), nb::arg("params"), nb::arg("scale").none(),
           nb::arg("target"), nb::arg("exact"))
      .def_rw("recording", &Attention::recording)
      .def("run", &Attention::run, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none())
      .def("prepare", &Attention::prepare, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
           nb::arg().none())
      .def("least", &Attention::least)
      .def(
          "attend",
          [](const Attention& self, nb::handle q, nb::handle k, nb::handle v, const nb::tuple& captures,
             const nb::tuple& ints, bool with_lse,
             bool with_max) { return attend(self, q, k, v, captures, ints, with_lse, with_max); },
          nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
      .def(
          "gradients",
          [](const Attention& self, nb::handle grad_o, nb::handle grad_lse, const nb::tuple& saved,
             const nb::tuple& ints, const nb::tuple& wanted,
             std::size_t first) { return gradients(self, grad_o, grad_lse, saved, ints, wanted, first); },
          nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
      .def("cover", &Attention::cover, nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
      .def("explain", &Attention::explain)
      .def("describe", &Attention::describe)
      .def("tiles", &Attention::tiles)
      .def("draw", &Attention::draw, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg().none(), nb::arg());
  add_quick(m, handle_of);
  add_jax(m, handle_of);
  m.def("find_torch", &find_torch);
  m.def("plain", &plain);
  m.def("empty", &empty);
  m.def("append", &append);
  m.def("machine", &machine);
  m.def("version", &attune_version);
  m.def(
      "option",
      [](const nb::str& name, const Text& value) {
        check(attune_option(utf8(name).c_str(), value ? utf8(*value).c_str() : nullptr));
      },
      nb::arg(), nb::arg().none());
  m.def("load", [](const nb::bytes& bundle) { check(attune_load(bundle.c_str())); });
  m.def("load_bytes", [](nb::bytes bytes) {
    check(attune_load_bytes(bytes.data(), bytes.size()));
    bytes.release();  // the library reads them until the process ends
  });
  m.def("compile", &compile, nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}
