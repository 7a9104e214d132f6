// Locks: every access to the rows holds byte 0 of the file, taken after the mutex between this process's threads. The
// owner of row i holds byte 1 + i for its whole life.
//
// Reads and writes the file by system calls and never maps it: reading a mapping of a truncated file kills the process.
// A member keeps a copy of its own row and of the limit, which cannot change while it is a member.
#include "group_ledger.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

#include "assign_or_return.hpp"
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
  std::uint64_t bytes;
  std::uint32_t process;         // informational; the locks tell which processes live
  std::uint32_t measured_units;  // in a job's ledger: the measured part of `bytes`, in units of measured_unit
};

struct ledger_file {
  std::uint64_t magic;  // written last
  std::uint64_t size;
  std::uint64_t limit;
  std::uint64_t kind;  // ledger_kind
  std::array<ledger_row, most_members> rows;
};

namespace {

constexpr std::size_t file_size = sizeof(ledger_file);
static_assert(file_size == 4096);
/// More than any card has. A larger figure in a job's ledger is damage; a group's limit bounds its figures.
constexpr std::uint64_t most_bytes_of_row = std::uint64_t{1} << 48;
/// The unit of `measured_units`: 64 KiB, so that 32 bits suffice for any row.
constexpr std::uint64_t measured_unit = most_bytes_of_row >> 32;

status no_ledger(const std::string& path, const std::string& group, std::string_view why) {
  return {errc::corrupt,
          fmt::format("{}: {}; expected a ledger of group {}: remove the file when no member runs", path, why, group)};
}

/// Locks the whole file. Other holders keep the lock for microseconds; waits at most 10 s for a stopped holder.
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
  file_guard& operator=(file_guard&&) = delete;
  [[nodiscard]] bool held() const noexcept { return held_; }

 private:
  int fd_;
  bool held_ = false;
};

}  // namespace

group_ledger::group_ledger(std::string name, std::string path, owned_fd file, ledger_kind kind)
    : name_{std::move(name)},
      path_{std::move(path)},
      file_{std::move(file)},
      kind_{kind},
      row_{most_members},
      process_{::getpid()} {
  keep_from_forks(file_.get());
}

group_ledger::~group_ledger() {
  if (here() && row_ < most_members) {
    const mutex_lock threads{mutex_};
    held_bytes_ = measured_bytes_ = 0;
    const file_guard guard{file_.get()};
    if (guard.held() && read_whole()) write_own_row();
  }
  close_shared(std::move(file_));  // releases the row's lock
}

result<std::shared_ptr<group_ledger>> group_ledger::join(const std::string& folder, const std::string& name,
                                                         const std::string& device_uuid,
                                                         std::optional<std::uint64_t> limit_bytes, ledger_kind kind) {
  static checked_mutex mutex;
  static auto* const joined = new std::map<std::string, std::weak_ptr<group_ledger>>;
  const mutex_lock lock{mutex};
  std::string path = fmt::format("{}-{}", name, device_uuid);
  std::replace(path.begin(), path.end(), '/', '_');
  path = fmt::format("{}/group-{}", folder, path);
  if (std::shared_ptr<group_ledger> known = (*joined)[path].lock(); known && known->here()) {
    if (limit_bytes && *limit_bytes != known->limit() && kind == ledger_kind::group) {
      return status{errc::bad_setting, fmt::format("GPUMEM_GROUP_LIMIT={}: this process is in group {} with {}",
                                                   format_bytes(*limit_bytes), name, format_bytes(known->limit()))};
    }
    return known;
  }
  for (;;) {
    ASSIGN_OR_RETURN(auto file, open_shared_file(path, true));
    auto made = std::make_shared<group_ledger>(name, path, std::move(file), kind);
    if (status ok = made->open_or_make(limit_bytes); !ok) return ok;
    if (kind == ledger_kind::job && made->removed()) continue;  // remove_ended_jobs found it without a member
    (*joined)[path] = made;
    return made;
  }
}

bool group_ledger::removed() const noexcept {
  struct stat s {};
  return ::fstat(file_.get(), &s) == 0 && s.st_nlink == 0;
}

// Holds the file's lock, as a new member does to take a row. A member that gets the lock later sees the unlinked file.
void group_ledger::remove_ended_jobs(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{folder, error}) {
    if (!entry.path().filename().string().starts_with("group-run-")) continue;
    const result<owned_fd> opened = open_shared_file(entry.path().string(), false);
    if (!opened) continue;
    const file_guard guard{opened->get()};
    ledger_file all{};
    bool used = !guard.held() || ::pread(opened->get(), &all, file_size, 0) != static_cast<ssize_t>(file_size) ||
                all.magic != magic_word || all.kind != static_cast<std::uint64_t>(ledger_kind::job);
    for (std::size_t i = 0; !used && i < most_members; ++i) used = byte_locked(opened->get(), lock_of(i));
    if (!used) ::unlink(entry.path().c_str());
  }
}

status group_ledger::inspect(const std::string& folder, const std::string& name) {
  const std::string beginning = fmt::format("group-{}-", name);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{folder, error}) {
    const std::string file = entry.path().filename().string();
    // A device's UUID must follow the name, because another group's name may begin with this one.
    if (!file.starts_with(beginning + "GPU-") && !file.starts_with(beginning + "MIG-")) continue;
    ASSIGN_OR_RETURN(const auto opened, open_shared_file(entry.path().string(), false));
    const file_guard guard{opened.get()};
    std::array<std::uint64_t, 2> header{};  // magic, size
    struct stat s {};
    const bool read =
        guard.held() && ::fstat(opened.get(), &s) == 0 && ::pread(opened.get(), header.data(), sizeof header, 0) >= 0;
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
  const mutex_lock threads{mutex_};
  const file_guard guard{file_.get()};
  if (!guard.held()) return damaged("somebody has kept it locked for 10 s");
  bool alone = true;
  for (std::size_t i = 0; i < most_members; ++i) alone = alone && !byte_locked(file_.get(), lock_of(i));
  struct stat s {};
  if (::fstat(file_.get(), &s) != 0) return damaged(std::strerror(errno));
  ledger_file all{};
  if (s.st_size != 0 && !read_whole(&all)) return damaged(fmt::format("has {} bytes", s.st_size));
  if (all.magic == 0) {  // new, or its creator was killed before it finished
    if (!alone) return damaged("was cut while members run");
    if (!limit_bytes) {
      return {errc::bad_setting,
              fmt::format("GPUMEM_GROUP={}: needs GPUMEM_GROUP_LIMIT (4GiB or 30%), as no member has one yet", name_)};
    }
    if (const int failed = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(file_size)); failed != 0) {
      return {errc::bad_setting,
              fmt::format("{}: the ledger of group {} cannot be made: {}", path_, name_, std::strerror(failed))};
    }
    all = {.magic = 0, .size = file_size, .limit = *limit_bytes, .kind = static_cast<std::uint64_t>(kind_), .rows = {}};
    if (!write_at(&all, sizeof all, 0)) return damaged(std::strerror(errno));
    all.magic = magic_word;
    if (!write_at(&all.magic, sizeof all.magic, 0)) return damaged(std::strerror(errno));
  } else if (all.magic != magic_word || all.size != file_size) {
    return damaged("is none, or of another version");
  } else if (all.kind != static_cast<std::uint64_t>(kind_)) {
    return damaged("is another kind of ledger");
  }
  limit_ = all.limit;
  if (!sum(all)) return damaged("its rows add up to more than its limit");
  if (limit_bytes && alone && kind_ == ledger_kind::group) {
    limit_ = *limit_bytes;
    if (!write_at(&limit_, sizeof limit_, offsetof(ledger_file, limit))) return damaged(std::strerror(errno));
  } else if (limit_bytes && *limit_bytes != limit_ && kind_ == ledger_kind::group) {
    return {errc::bad_setting,
            fmt::format("GPUMEM_GROUP_LIMIT={}: members of group {} run with {}; expected the same, or none",
                        format_bytes(*limit_bytes), name_, format_bytes(limit_))};
  }
  return take_row();
}

status group_ledger::take_row() {
  for (std::size_t row = 0; row < most_members; ++row) {
    if (!lock_byte(file_.get(), lock_of(row))) continue;
    row_ = row;
    return write_own_row() ? status{} : no_ledger(path_, name_, std::strerror(errno));
  }
  return {errc::bad_setting,
          fmt::format("{}={}: has {} members already", kind_ == ledger_kind::group ? "GPUMEM_GROUP" : "GPUMEM_JOB",
                      name_, most_members)};
}

bool group_ledger::here() const noexcept { return process_ == ::getpid(); }

bool group_ledger::read_whole(ledger_file* content) const noexcept {
  ledger_file all;
  struct stat s {};
  const bool whole = ::fstat(file_.get(), &s) == 0 && static_cast<std::size_t>(s.st_size) == file_size &&
                     ::pread(file_.get(), &all, file_size, 0) == static_cast<ssize_t>(file_size);
  if (whole && content != nullptr) *content = all;
  return whole;
}

bool group_ledger::write_at(const void* data, std::size_t bytes, std::size_t offset) const noexcept {
  return ::pwrite(file_.get(), data, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

bool group_ledger::write_own_row() const noexcept {
  const ledger_row own{
      .bytes = held_bytes_,
      .process = static_cast<std::uint32_t>(process_),
      .measured_units = static_cast<std::uint32_t>((measured_bytes_ + measured_unit - 1) / measured_unit)};
  return write_at(&own, sizeof own, offsetof(ledger_file, rows) + row_ * sizeof own);
}

std::optional<std::uint64_t> group_ledger::sum(const ledger_file& all) const noexcept {
  std::uint64_t held = 0;
  for (std::size_t i = 0; i < most_members; ++i) {
    const std::uint64_t bytes = i == row_ ? held_bytes_ : all.rows[i].bytes;
    if (bytes == 0 || (i != row_ && !byte_locked(file_.get(), lock_of(i)))) continue;  // no lock: the owner has ended
    const std::uint64_t most = kind_ == ledger_kind::group ? all.limit : most_bytes_of_row * most_members;
    if (bytes > most || held > most - bytes) return std::nullopt;
    held += bytes;
  }
  return held;
}

std::optional<std::uint64_t> group_ledger::sound_sum() noexcept {
  ledger_file all;
  struct stat s {};
  const bool whole = ::fstat(file_.get(), &s) == 0 && s.st_nlink == 1 && read_whole(&all) && all.magic == magic_word &&
                     all.size == file_size && all.limit == limit_ && all.kind == static_cast<std::uint64_t>(kind_) &&
                     (all.rows[row_].bytes == held_bytes_ || row_outdated_);
  if (whole && row_outdated_) row_outdated_ = !write_own_row();
  const std::optional<std::uint64_t> held = whole ? sum(all) : std::nullopt;
  if (!held && !said_) {
    said_ = true;
    log_if_possible(
        [this] { return fmt::format("{}: the ledger of group {} is damaged: nothing more is taken", path_, name_); });
  }
  return held;
}

bool group_ledger::reserve(std::uint64_t bytes) noexcept {
  const mutex_lock threads{mutex_};
  if (!here()) return false;
  const file_guard guard{file_.get()};
  const std::optional<std::uint64_t> held = guard.held() ? sound_sum() : std::nullopt;
  if (!held || *held > limit_ || bytes > limit_ - *held) return false;
  held_bytes_ += bytes;
  if (write_own_row()) return true;
  held_bytes_ -= bytes;
  return false;
}

// If the row cannot be written, the file shows too many bytes, which is safe for the limit; a later call writes it.
void group_ledger::give_back(std::uint64_t bytes) noexcept {
  const mutex_lock threads{mutex_};
  if (!here()) return;
  held_bytes_ -= bytes;
  const file_guard guard{file_.get()};
  row_outdated_ = !(guard.held() && read_whole() && write_own_row());
}

std::uint64_t group_ledger::left() noexcept {
  const mutex_lock threads{mutex_};
  if (!here()) return 0;
  const file_guard guard{file_.get()};
  const std::optional<std::uint64_t> held = guard.held() ? sound_sum() : std::nullopt;
  return held && *held < limit_ ? limit_ - *held : 0;
}

void group_ledger::enter(std::uint64_t bytes) noexcept {
  const mutex_lock threads{mutex_};
  if (!here() || !counts_measured()) return;
  held_bytes_ += bytes;
  measured_bytes_ += bytes;
  const file_guard guard{file_.get()};
  row_outdated_ = !(guard.held() && read_whole() && write_own_row());
}

void group_ledger::leave(std::uint64_t bytes) noexcept {
  {
    const mutex_lock threads{mutex_};
    if (!here() || !counts_measured()) return;
    measured_bytes_ -= bytes;
  }
  give_back(bytes);
}

std::uint64_t group_ledger::held_by_others() noexcept {
  const std::uint64_t all = held();
  const mutex_lock threads{mutex_};
  return all > held_bytes_ ? all - held_bytes_ : 0;
}

group_ledger::measured_memory group_ledger::measured() noexcept {
  const mutex_lock threads{mutex_};
  measured_memory total{.bytes = measured_bytes_, .members = 1};
  ledger_file all;
  const file_guard guard{file_.get()};
  if (!guard.held() || !here() || !read_whole(&all)) return total;
  for (std::size_t i = 0; i < most_members; ++i) {
    if (i == row_ || !byte_locked(file_.get(), lock_of(i))) continue;
    total.bytes += all.rows[i].measured_units * measured_unit;
    ++total.members;
  }
  return total;
}

std::uint64_t group_ledger::held() noexcept {
  const mutex_lock threads{mutex_};
  ledger_file all;
  const file_guard guard{file_.get()};
  return guard.held() && here() && read_whole(&all) ? sum(all).value_or(0) : 0;
}

std::vector<group_ledger::member> group_ledger::members() {
  std::vector<member> found;
  const mutex_lock threads{mutex_};
  ledger_file all;
  const file_guard guard{file_.get()};
  if (!guard.held() || !here() || !read_whole(&all)) return found;
  for (std::size_t i = 0; i < most_members; ++i) {
    const ledger_row& row = all.rows[i];
    if (row.bytes != 0 && (i == row_ || byte_locked(file_.get(), lock_of(i))))
      found.push_back({row.process, row.bytes});
  }
  return found;
}

}  // namespace gpumem
