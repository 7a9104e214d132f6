// The bytes of a group's ledger. The first byte of an input says how many rows have living owners, the second how many
// bytes of the rest are there when this process joins, in units of 32; the others are written while it is a member.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "fuzzed.hpp"
#include "group_ledger.hpp"
#include "log.hpp"

using namespace gpumem;

namespace {

constexpr std::uint64_t limit_bytes = std::uint64_t{1} << 30;
constexpr std::size_t bytes_a_unit = 32;

const std::string& folder() {
  static const std::string path = [] {
    std::string name = (std::filesystem::temp_directory_path() / "gpumem-ledger-XXXXXX").string();
    fuzz::require(::mkdtemp(name.data()) != nullptr, "a temporary folder can be made");
    return name;
  }();
  return path;
}

void write_file(int file, std::string_view content) {
  fuzz::require(::ftruncate(file, 0) == 0 &&
                    ::pwrite(file, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()),
                "the machine has room for the file");
}

void use(group_ledger& member) {
  const std::uint64_t limit = member.limit();
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{4096}, limit_bytes, limit, UINT64_MAX}) {
    if (!member.reserve(bytes)) continue;
    fuzz::require(member.held() <= limit, "the members never hold more than the limit");
    fuzz::require(member.left() <= limit, "no more is left than the limit");
    member.give_back(bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*words*/) {
  set_log_sink([](std::string_view) {});
  return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 2) return 0;
  const std::string path = folder() + "/group-lab-GPU-1";
  const std::string_view content = fuzz::text_of(data, bytes).substr(2);
  const std::size_t at_first = std::min<std::size_t>(content.size(), data[1] * bytes_a_unit);
  const owned_fd file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  fuzz::require(file.get() >= 0, "the ledger can be made");
  write_file(file.get(), content.substr(0, at_first));
  for (long row = 0; row < data[0]; ++row) fuzz::require(lock_byte(file.get(), 1 + row), "a row can be locked");
  static_cast<void>(group_ledger::inspect(folder(), "lab"));
  for (const auto limit : {std::optional<std::uint64_t>{}, std::optional<std::uint64_t>{limit_bytes}}) {
    const result<std::shared_ptr<group_ledger>> joined = group_ledger::join(folder(), "lab", "GPU-1", limit);
    if (!joined) {
      fuzz::require(!joined.why().message().empty(), "a refusal has a reason");
      continue;
    }
    use(**joined);
    if (at_first < content.size()) {
      write_file(file.get(), content.substr(at_first));
      use(**joined);
    }
  }
  return 0;
}
