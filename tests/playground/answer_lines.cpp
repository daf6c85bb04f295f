// tests/playground/answer_lines.cpp — answers each line of stdin, for tests that compare with WebAssembly's answers
#include <iostream>
#include <string>

#include "playground/answer.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) std::cout << attune::playground::answer(line) << '\n';
}
