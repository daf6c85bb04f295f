// include/attune/error.h — what attune throws: Error for a mistake that the caller can fix, Bug for a defect of attune
#pragma once

#include <attune/cxx20.h>

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

namespace attune {

/// Where a mistake was written: a file and line, or a piece of text with the span that is wrong.
struct Place {
  std::string name{};     ///< a source file, an option such as --score, or a data file
  int line = 0;           ///< 0: no line, the name alone
  std::string text{};     ///< the expression, as the user wrote it or as attune prints it
  std::size_t begin = 0;  ///< the wrong part of `text`, half open; empty: no caret
  std::size_t end = 0;    ///< text.size() + 1: something is missing at the end
};

/// A mistake the caller can fix. `code` is a stable slug and an anchor of docs/errors.md.
struct Error : std::exception {
  std::string code;
  std::string problem;  ///< what is wrong, in the user's terms
  Place where;
  std::string why;  ///< the facts that collide, with their numbers
  std::string fix;  ///< what to do

  Error(std::string code, std::string problem, Place where, std::string why, std::string fix);
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// A defect of attune. The message asks the reader to report it.
struct Bug : std::exception {
  explicit Bug(std::string_view what);
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace attune
