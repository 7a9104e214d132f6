/// Recordings that are not part of the project: files of the folder that the environment variable GPUMEM_TRACES names.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace gpumem {

/// The path of `file` in the folder of recordings; nothing if there is no such folder or file. A test then skips with
/// `no_recording(file)`.
inline std::optional<std::string> recording(const std::string& file) {
  const char* const folder = std::getenv("GPUMEM_TRACES");
  if (folder == nullptr) return {};
  const std::filesystem::path path = std::filesystem::path{folder} / file;
  return std::filesystem::exists(path) ? std::optional{path.string()} : std::nullopt;
}

inline std::string no_recording(const std::string& file) {
  const char* const folder = std::getenv("GPUMEM_TRACES");
  return folder == nullptr ? "GPUMEM_TRACES names no folder of recordings, where " + file + " would be"
                           : file + " is not in GPUMEM_TRACES=" + folder;
}

}  // namespace gpumem
