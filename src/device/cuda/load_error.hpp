/// The reason why dlopen refused a library, for messages.
#pragma once

#include <dlfcn.h>

#include <string>

#include "text.hpp"

namespace gpumem {

/// Returns the message of dlerror on one line, without the leading path. Call it right after dlopen has failed.
inline std::string load_error(const std::string& path) {
  const char* const why = dlerror();
  std::string text = why != nullptr ? why : "it cannot be loaded";
  if (text.starts_with(path + ": ")) text.erase(0, path.size() + 2);
  return printable(text, 400);
}

}  // namespace gpumem
