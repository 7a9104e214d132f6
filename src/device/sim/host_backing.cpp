#include "host_backing.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace gpumem {
namespace {

status host_call_failed(std::string_view call, std::uint64_t bytes) {
  return {errc::out_of_memory,
          fmt::format("{} of {} bytes of host memory failed: {}", call, bytes, std::strerror(errno))};
}

void* pointer(address begin) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(begin)); }

}  // namespace

result<host_backing> host_backing::reserve(std::uint64_t bytes, std::uint64_t alignment) {
  host_backing backing;
  const std::uint64_t with_slack = bytes + alignment;
  void* const mapping = mmap(nullptr, with_slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return host_call_failed("mmap", with_slack);
  backing.mapping_ = mapping;
  backing.mapping_bytes_ = with_slack;
  const auto mapping_begin = static_cast<address>(reinterpret_cast<std::uintptr_t>(mapping));
  backing.begin_ = (mapping_begin + alignment - 1) / alignment * alignment;
  backing.bytes_ = bytes;
  backing.file_ = memfd_create("simulated pages", MFD_CLOEXEC);
  if (backing.file_ < 0) return host_call_failed("memfd_create", 0);
  return backing;
}

host_backing::host_backing(host_backing&& source) noexcept { *this = std::move(source); }

host_backing& host_backing::operator=(host_backing&& source) noexcept {
  std::swap(begin_, source.begin_);
  std::swap(bytes_, source.bytes_);
  std::swap(mapping_, source.mapping_);
  std::swap(mapping_bytes_, source.mapping_bytes_);
  std::swap(file_, source.file_);
  std::swap(file_bytes_, source.file_bytes_);
  return *this;
}

host_backing::~host_backing() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
  if (file_ >= 0) ::close(file_);
}

status host_backing::open(address begin, std::uint64_t bytes) {
  return mprotect(pointer(begin), bytes, PROT_READ | PROT_WRITE) == 0 ? status{} : host_call_failed("mprotect", bytes);
}

status host_backing::close(address begin, std::uint64_t bytes) {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(pointer(begin), bytes, PROT_NONE, flags, -1, 0) != MAP_FAILED ? status{}
                                                                            : host_call_failed("mmap", bytes);
}

status host_backing::map(address begin, std::uint64_t bytes, std::uint64_t offset) {
  if (offset + bytes > file_bytes_) {
    if (ftruncate(file_, static_cast<off_t>(offset + bytes)) != 0) return host_call_failed("ftruncate", offset + bytes);
    file_bytes_ = offset + bytes;
  }
  void* const mapped =
      mmap(pointer(begin), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, static_cast<off_t>(offset));
  return mapped != MAP_FAILED ? status{} : host_call_failed("mmap", bytes);
}

void host_backing::discard(std::uint64_t offset, std::uint64_t bytes) noexcept {
  if (offset >= file_bytes_) return;
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

}  // namespace gpumem
