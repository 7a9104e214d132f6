#include "published_figures.hpp"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "exit_report.hpp"
#include "history_dump.hpp"
#include "log.hpp"
#include "pooled_allocator.hpp"
#include "shared_folder.hpp"
#include "status_socket.hpp"
#include "whole_file.hpp"

namespace gpumem {
namespace {

std::string own_command() {
  std::string text = content_of("/proc/self/cmdline");
  std::replace(text.begin(), text.end(), '\0', ' ');
  while (text.ends_with(' ')) text.pop_back();
  return text.substr(0, 256);
}

}  // namespace

std::string published_figures(std::span<const allocator* const> allocators, const settings& options) {
  nlohmann::json rows = nlohmann::json::array();
  for (const allocator* const memory : allocators) {
    for (const logical_device& d : memory->devices()) {
      const result<statistics> s = memory->stats(d.ordinal);
      if (!s) continue;
      const std::uint64_t free_bytes = s->reserved_bytes - s->live_bytes - s->leaked_bytes;
      rows.push_back({{"ordinal", rows.size()},
                      {"name", d.name},
                      {"uuid", d.gpu_uuid},
                      {"policy", d.policy},
                      {"limit_bytes", s->limit_bytes},
                      {"live_bytes", s->live_bytes},
                      {"reserved_bytes", s->reserved_bytes},
                      {"free_bytes", free_bytes},
                      {"largest_free_bytes", s->largest_free_bytes},
                      {"external_fragmentation",
                       free_bytes == 0 ? 0.0
                                       : 1.0 - static_cast<double>(std::min(s->largest_free_bytes, free_bytes)) /
                                                   static_cast<double>(free_bytes)},
                      {"allocations", s->allocations},
                      {"out_of_memory", s->out_of_memory}});
    }
  }
  const nlohmann::json all{{"schema", 1},
                           {"pid", ::getpid()},
                           {"command", own_command()},
                           {"group", options.group},
                           {"devices", std::move(rows)}};
  return all.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void publish_until_exit(std::function<std::vector<pooled_allocator*>()> allocators, const settings& options) {
  if (!options.publish) return;
  const auto give_up = [&](const status& why) {
    if (options.verbose) log_line(why.message());
  };
  const result<std::string> folder = shared_folder(options.shared_folder);
  if (!folder) return give_up(folder.why());
  result<std::unique_ptr<status_socket>> made = status_socket::open(
      *folder,
      [now = allocators, options] {
        const std::vector<pooled_allocator*> all = now();
        return published_figures(std::vector<const allocator*>(all.begin(), all.end()), options);
      },
      [now = allocators] {
        for (pooled_allocator* const memory : now()) {
          for (const logical_device& d : memory->devices()) static_cast<void>(memory->trim(d.ordinal));
        }
      },
      [now = allocators](std::string_view contents, int descriptor) {
        const std::vector<pooled_allocator*> all = now();
        return write_dump(all, contents, descriptor);
      });
  if (!made) return give_up(made.why());
  static status_socket* serving = nullptr;  // one per process; never destroyed
  serving = made->release();
  remember_at_exit(serving, [at = serving] { at->leave(); });
}

}  // namespace gpumem
