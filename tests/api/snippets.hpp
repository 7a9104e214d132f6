/// The fenced blocks of the documents: language, place and text.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace gpumem::tree {

struct snippet {
  std::filesystem::path document;
  std::size_t line = 0;  ///< line of the first line of its text, from 1
  std::string language;  ///< text after the fence; empty: a command line or a diagram
  std::string text;
};

/// Of README.md, CONTRIBUTING.md, docs/ and the READMEs of folders, in order.
std::vector<snippet> snippets();

}  // namespace gpumem::tree
