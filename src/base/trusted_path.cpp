#include "trusted_path.hpp"

#include <sys/auxv.h>

#include <cstdlib>

#include "log.hpp"

namespace gpumem {

bool runs_secure() noexcept { return getauxval(AT_SECURE) != 0; }

std::string trusted_path(const char* variable, bool secure) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return {};
  if (!secure) return value;
  log_once(std::string{variable} + " is ignored: this program runs with more rights than its user has");
  return {};
}

}  // namespace gpumem
