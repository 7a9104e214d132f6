// A command's words as exec takes them.
#pragma once

#include <string>
#include <vector>

namespace gpumem {

/// Pointers to the words and a null pointer. The words must outlive them.
[[nodiscard]] inline std::vector<char*> exec_words(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace gpumem
