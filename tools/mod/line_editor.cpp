// tools/mod/line_editor.cpp — lines edited by libedit: history in a file, completion at Tab, Ctrl-C abandons a line
#include "tools/mod/line_reader.h"

#include <histedit.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cwchar>

namespace attune::tools {
namespace {

constexpr int kept_lines = 1000;

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

/// While this object lives, Ctrl-C makes a read return instead of ending the process.
class Interruptible {
 public:
  Interruptible() {
    struct sigaction ours {};
    ours.sa_handler = on_interrupt;
    sigaction(SIGINT, &ours, &before_);
  }
  ~Interruptible() { sigaction(SIGINT, &before_, nullptr); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  struct sigaction before_ {};
};

std::string common_start(const std::vector<std::string>& words) {
  std::string out = words.front();
  for (const std::string& word : words)
    out.resize(static_cast<std::size_t>(std::ranges::mismatch(out, word).in1 - out.begin()));
  return out;
}

class Editor : public LineReader {
 public:
  Editor(std::string prompt, std::filesystem::path file, Complete complete)
      : prompt_(std::move(prompt)), file_(std::move(file)), complete_(std::move(complete)) {
    std::setlocale(LC_CTYPE, "");
    edit_ = el_init("attune", stdin, stdout, stderr);
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, kept_lines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!file_.empty()) history(history_, &event, H_LOAD, file_.c_str());
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &Editor::prompt);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    // Wide names, because libedit copies narrow ones and never frees the copies.
    el_wset(edit_, EL_ADDFN, L"attune-complete", L"complete a word", &Editor::tab);
    el_set(edit_, EL_BIND, "^I", "attune-complete", nullptr);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    // Last, so that the user's own ~/.editrc wins.
    el_source(edit_, nullptr);
  }

  ~Editor() override {
    if (!file_.empty()) {
      std::error_code ignored;
      std::filesystem::create_directories(file_.parent_path(), ignored);
      HistEvent event;
      history(history_, &event, H_SAVE, file_.c_str());
    }
    history_end(history_);
    el_end(edit_);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  std::optional<std::string> next() override {
    const Interruptible while_reading;
    int count = 0;
    interrupted = 0;
    const char* text = el_gets(edit_, &count);
    if (!text || count <= 0) {
      std::fputs("\n", stdout);
      // Ctrl-C during a search looks like the end of the input, and sets no errno.
      if (interrupted != 0) {
        el_set(edit_, EL_UNBUFFERED, 0);
        el_reset(edit_);
        return "";
      }
      return std::nullopt;
    }
    std::string line(text, static_cast<std::size_t>(count));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    HistEvent event;
    if (line.find_first_not_of(' ') != std::string::npos) history(history_, &event, H_ENTER, line.c_str());
    return line;
  }

 private:
  static Editor& of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<Editor*>(self);
  }

  static char* prompt(EditLine* edit) { return of(edit).prompt_.data(); }

  static unsigned char tab(EditLine* edit, wint_t) {
    const LineInfo* info = el_line(edit);
    const std::string line(info->buffer, info->cursor);
    const std::string_view word = last_word(line);
    const std::vector<std::string> words = of(edit).complete_(
        std::string_view(line).substr(0, line.size() - word.size()), word);
    if (words.empty()) return CC_REFRESH_BEEP;
    const std::string start = common_start(words),
                      more = start.substr(word.size()) + (words.size() == 1 && !start.ends_with('(') ? " " : "");
    if (!more.empty()) return el_insertstr(edit, more.c_str()) == 0 ? CC_REFRESH : CC_REFRESH_BEEP;
    std::fputs("\n", stdout);
    for (const std::string& one : words) std::fprintf(stdout, "%s  ", one.c_str());
    std::fputs("\n", stdout);
    return CC_REDISPLAY;
  }

  std::string prompt_;
  std::filesystem::path file_;
  Complete complete_;
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
};

}  // namespace

std::unique_ptr<LineReader> line_editor(const std::string& prompt, const std::filesystem::path& history,
                                        Complete complete) {
  return std::make_unique<Editor>(prompt, history, std::move(complete));
}

}  // namespace attune::tools
