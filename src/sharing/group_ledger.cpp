// Locks: byte 0 of the file for every access to the rows, taken after the mutex between this process's threads; byte
// 1 + i by the owner of row i, for its whole life.
#include "group_ledger.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

#include "checked_mutex.hpp"
#include "gpumem/settings.hpp"
#include "log.hpp"

namespace gpumem {

namespace {
constexpr std::size_t most_members = 254;
constexpr std::uint64_t magic_word = 0x31524547444c4d47;  // "GMLDGER1"
constexpr long file_lock = 0;
constexpr long lock_of(std::size_t row) noexcept { return 1 + static_cast<long>(row); }
}  // namespace

struct ledger_row {
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint64_t> process;  // informational; the locks tell which processes live
};

struct ledger_file {
  std::atomic<std::uint64_t> magic;  // written last
  std::uint64_t size;
  std::atomic<std::uint64_t> limit;
  std::uint64_t unused;
  ledger_row rows[most_members];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

constexpr std::size_t file_size = sizeof(ledger_file);

status no_ledger(const std::string& path, const std::string& group, std::string_view why) {
  return {errc::corrupt,
          fmt::format("{}: {}; expected a ledger of group {}: remove the file when no member runs", path, why, group)};
}

/// The lock of the whole file. Holders keep it for microseconds. Waits for a stopped holder for a limited time.
class file_guard {
 public:
  explicit file_guard(int fd) noexcept : fd_{fd} {
    const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds{10};
    for (unsigned tries = 0; !(held_ = lock_byte(fd_, file_lock)); ++tries) {
      if (tries < 20) {
        std::this_thread::yield();
      } else if (std::chrono::steady_clock::now() > enough) {
        return;
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds{20});
      }
    }
  }
  ~file_guard() {
    if (held_) unlock_byte(fd_, file_lock);
  }
  file_guard(const file_guard&) = delete;
  file_guard& operator=(const file_guard&) = delete;
  [[nodiscard]] bool held() const noexcept { return held_; }

 private:
  int fd_;
  bool held_ = false;
};

}  // namespace

group_ledger::group_ledger(std::string name, std::string path, owned_fd file)
    : name_{std::move(name)}, path_{std::move(path)}, file_{std::move(file)}, row_{most_members}, process_{::getpid()} {
  keep_from_forks(file_.get());
}

group_ledger::~group_ledger() {
  if (map_ != nullptr) {
    if (here() && row_ < most_members) map_->rows[row_].bytes = 0;
    ::munmap(map_, file_size);
  }
  close_shared(std::move(file_));  // releases the row's lock
}

result<std::shared_ptr<group_ledger>> group_ledger::join(const std::string& folder, const std::string& name,
                                                         const std::string& device_uuid,
                                                         std::optional<std::uint64_t> limit_bytes) {
  static checked_mutex mutex;
  static auto* const joined = new std::map<std::string, std::weak_ptr<group_ledger>>;
  const mutex_lock lock{mutex};
  std::string path = fmt::format("{}-{}", name, device_uuid);
  std::replace(path.begin(), path.end(), '/', '_');
  path = fmt::format("{}/group-{}", folder, path);
  if (std::shared_ptr<group_ledger> known = (*joined)[path].lock(); known && known->here()) {
    if (limit_bytes && *limit_bytes != known->limit()) {
      return status{errc::bad_setting, fmt::format("GPUMEM_GROUP_LIMIT={}: this process is in group {} with {}",
                                                   format_bytes(*limit_bytes), name, format_bytes(known->limit()))};
    }
    return known;
  }
  result<owned_fd> file = open_shared_file(path, true);
  if (!file) return file.why();
  auto made = std::make_shared<group_ledger>(name, path, *std::move(file));
  if (status ok = made->open_or_make(limit_bytes); !ok) return ok;
  (*joined)[path] = made;
  return made;
}

status group_ledger::inspect(const std::string& folder, const std::string& name) {
  const std::string beginning = fmt::format("group-{}-", name);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{folder, error}) {
    const std::string file = entry.path().filename().string();
    // A device's UUID follows the name. Another group's name may have this one as a prefix.
    if (!file.starts_with(beginning + "GPU-") && !file.starts_with(beginning + "MIG-")) continue;
    const result<owned_fd> opened = open_shared_file(entry.path().string(), false);
    if (!opened) return opened.why();
    const file_guard guard{opened->get()};
    std::array<std::uint64_t, 2> header{};  // magic, size
    struct stat s {};
    const bool read =
        guard.held() && ::fstat(opened->get(), &s) == 0 && ::pread(opened->get(), header.data(), sizeof header, 0) >= 0;
    const bool unmade = read && header[0] == 0 && (s.st_size == 0 || static_cast<std::size_t>(s.st_size) == file_size);
    const bool whole = read && header == std::array{magic_word, std::uint64_t{file_size}} &&
                       static_cast<std::size_t>(s.st_size) == file_size;
    if (!unmade && !whole) return no_ledger(entry.path().string(), name, "is none, or of another version");
  }
  return {};
}

// Holds the file's lock throughout, so that no process sees an incomplete ledger.
status group_ledger::open_or_make(std::optional<std::uint64_t> limit_bytes) {
  const auto damaged = [&](std::string_view why) { return no_ledger(path_, name_, why); };
  const file_guard guard{file_.get()};
  if (!guard.held()) return damaged("somebody has kept it locked for 10 s");
  struct stat s {};
  if (::fstat(file_.get(), &s) != 0) return damaged(std::strerror(errno));
  if (s.st_size == 0) {
    if (!limit_bytes) {
      return {errc::bad_setting,
              fmt::format("GPUMEM_GROUP={}: needs GPUMEM_GROUP_LIMIT (4GiB or 30%), as no member has one yet", name_)};
    }
    if (const int failed = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(file_size)); failed != 0) {
      return damaged(std::strerror(failed));
    }
  } else if (static_cast<std::size_t>(s.st_size) != file_size) {
    return damaged(fmt::format("has {} bytes", s.st_size));
  }
  // Mapped through a separate descriptor, because a mapping keeps its descriptor's locks alive, even in a fork.
  result<owned_fd> second = open_shared_file(path_, false);
  if (!second) return second.why();
  struct stat again {};
  if (::fstat(file_.get(), &s) != 0 || ::fstat(second->get(), &again) != 0 || s.st_ino != again.st_ino) {
    return damaged("was replaced while it was opened");
  }
  void* const at = ::mmap(nullptr, file_size, PROT_READ | PROT_WRITE, MAP_SHARED, second->get(), 0);
  if (at == MAP_FAILED) return damaged(std::strerror(errno));
  map_ = static_cast<ledger_file*>(at);

  const std::uint64_t magic = map_->magic;
  if (magic == 0) {  // new, or its creator was killed before it finished
    if (!limit_bytes) return {errc::bad_setting, fmt::format("GPUMEM_GROUP={}: needs GPUMEM_GROUP_LIMIT", name_)};
    std::memset(at, 0, file_size);
    map_->size = file_size;
    map_->limit = *limit_bytes;
    map_->magic = magic_word;
  } else if (magic != magic_word || map_->size != file_size) {
    return damaged("is none, or of another version");
  }
  const std::optional<std::uint64_t> held = sum(true);
  if (!held) return damaged("its rows add up to more than its limit");
  bool alone = true;
  for (std::size_t i = 0; i < most_members; ++i) alone = alone && !byte_locked(file_.get(), lock_of(i));
  if (limit_bytes && alone) {
    map_->limit = *limit_bytes;
  } else if (limit_bytes && *limit_bytes != map_->limit) {
    return {errc::bad_setting,
            fmt::format("GPUMEM_GROUP_LIMIT={}: members of group {} run with {}; expected the same, or none",
                        format_bytes(*limit_bytes), name_, format_bytes(map_->limit))};
  }
  for (std::size_t row = 0; row < most_members; ++row) {
    if (!lock_byte(file_.get(), lock_of(row))) continue;
    row_ = row;
    map_->rows[row].bytes = 0;
    map_->rows[row].process = static_cast<std::uint64_t>(process_);
    return {};
  }
  return {errc::bad_setting, fmt::format("GPUMEM_GROUP={}: has {} members already", name_, most_members)};
}

bool group_ledger::here() const noexcept { return process_ == ::getpid(); }

std::uint64_t group_ledger::limit() const noexcept { return map_->limit; }

// The sum of the rows; empty if it is impossible. Requires the file's lock.
std::optional<std::uint64_t> group_ledger::sum(bool forget_dead) noexcept {
  const std::uint64_t most = map_->limit;
  std::uint64_t held = 0;
  for (std::size_t i = 0; i < most_members; ++i) {
    std::uint64_t bytes = map_->rows[i].bytes;
    if (bytes == 0) continue;
    if (forget_dead && i != row_ && !byte_locked(file_.get(), lock_of(i))) map_->rows[i].bytes = bytes = 0;
    if (bytes > most || held > most - bytes) return std::nullopt;
    held += bytes;
  }
  return held;
}

// Requires the file's lock. Checks the file's length first: reading a mapping of a truncated file is fatal.
bool group_ledger::sound() noexcept {
  struct stat s {};
  const bool whole = ::fstat(file_.get(), &s) == 0 && s.st_nlink == 1 &&
                     static_cast<std::size_t>(s.st_size) == file_size && map_->magic == magic_word &&
                     sum(true).has_value();
  if (!whole && !said_) {
    said_ = true;
    log_if_possible(
        [this] { return fmt::format("{}: the ledger of group {} is damaged: nothing more is taken", path_, name_); });
  }
  return whole;
}

bool group_ledger::reserve(std::uint64_t bytes) noexcept {
  const mutex_lock threads{mutex_};
  if (!here()) return false;
  const file_guard guard{file_.get()};
  if (!guard.held() || !sound()) return false;
  const std::uint64_t held = *sum(false);
  if (bytes > map_->limit - held) return false;
  map_->rows[row_].bytes += bytes;
  return true;
}

void group_ledger::give_back(std::uint64_t bytes) noexcept {
  const mutex_lock threads{mutex_};
  if (!here()) return;
  map_->rows[row_].bytes -= bytes;  // one atomic decrease: other processes never see too little
}

std::uint64_t group_ledger::left() noexcept {
  const mutex_lock threads{mutex_};
  if (!here()) return 0;
  const file_guard guard{file_.get()};
  return guard.held() && sound() ? map_->limit - *sum(false) : 0;
}

std::uint64_t group_ledger::held() noexcept {
  const mutex_lock threads{mutex_};
  const file_guard guard{file_.get()};
  return guard.held() && here() ? sum(true).value_or(0) : 0;
}

}  // namespace gpumem
