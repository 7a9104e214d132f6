#include "temporary_folder.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

namespace gpumem::cli {

temporary_folder::temporary_folder(const std::string& prefix) {
  const char* const base = std::getenv("TMPDIR");
  path_ = fmt::format("{}/{}XXXXXX", base != nullptr && *base != '\0' ? base : "/tmp", prefix);
  if (::mkdtemp(path_.data()) == nullptr) path_.clear();
}

temporary_folder::~temporary_folder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace gpumem::cli
