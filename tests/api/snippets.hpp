/// The fenced blocks of the documents: what language each is in, where it stands, its text.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace gpumem::tree {

struct snippet {
  std::filesystem::path document;
  std::size_t line = 0;  ///< of its first line of text, from 1
  std::string language;  ///< what stands behind the fence; empty: a command line, or a picture of letters
  std::string text;
};

/// Of README.md, CONTRIBUTING.md, docs/ and the READMEs of folders, in order.
std::vector<snippet> snippets();

}  // namespace gpumem::tree
