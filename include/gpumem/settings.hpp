/// Settings: every option of gpumem as a value, and the one way from text to it.
///
/// The table of options is src/base/options.def; the names here are its first column. Code sets options with
/// `set` (or the fields directly), the environment (`GPUMEM_<NAME>`, and `GPUMEM_<NAME>_<ordinal>` for one
/// device) wins over code. Not synchronised: fill it in, then hand it over.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpumem/export.h"
#include "gpumem/status.hpp"

namespace GPUMEM_API gpumem {

/// `4GiB`, `30%` (of the device's memory) or `80%free` (of what is free at start).
struct byte_limit {
  enum class kind : std::uint8_t { none, bytes, of_total, of_free };
  kind unit = kind::none;
  std::uint64_t bytes = 0;  ///< for `bytes`
  double fraction = 0;      ///< for the other two, in (0, 1]

  [[nodiscard]] explicit operator bool() const noexcept { return unit != kind::none; }
  /// In bytes, rounded down; `total` where there is no limit.
  [[nodiscard]] std::uint64_t resolve(std::uint64_t total_bytes, std::uint64_t free_bytes) const noexcept;
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const byte_limit&, const byte_limit&) = default;
};

/// One logical device: `8GiB`, `train:8GiB` or `train:8GiB:caching`.
struct pool_spec {
  std::string name;    ///< empty: its ordinal
  byte_limit limit;    ///< a fraction is of GPUMEM_LIMIT where that is set, else of the device
  std::string policy;  ///< empty: GPUMEM_POLICY
  friend bool operator==(const pool_spec&, const pool_spec&) = default;
};

/// Which of the visible GPUs are used: all, none, those named, or so many that are chosen by what they are doing.
struct device_choice {
  enum class kind : std::uint8_t { all, none, named, automatic };
  kind how = kind::all;
  std::vector<std::string> names;  ///< for `named`: ordinals, UUIDs (`GPU-...`, `MIG-...`) or the beginning of one
  unsigned count = 1;              ///< for `automatic`

  [[nodiscard]] explicit operator bool() const noexcept { return how != kind::all; }
  /// As `parse_devices` reads it; empty for `all`, `none` for none.
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const device_choice&, const device_choice&) = default;
};

/// Who tells that a stream has ended (see docs/architecture.md, streams).
enum class stream_id_mode : std::uint8_t {
  query,   ///< ask the device for the stream's id at each call
  notify,  ///< the program calls `stream_release` before it destroys a stream
};

/// How a stream gets memory that another one freed and may still use.
enum class stream_reuse : std::uint8_t {
  device,  ///< the new stream waits for a fence on the device; the host goes on
  poll,    ///< only once a fence is seen to be done: no stream waits for another one
  host,    ///< the host waits for the fence before it takes more memory
};

/// What GPUMEM_LIMIT is a limit on, in a process that gpumem is preloaded into.
enum class limit_scope : std::uint8_t {
  pool,     ///< gpumem's own segments
  process,  ///< everything that the process has on the device
};

enum class setting_source : std::uint8_t { default_value, code, environment };

/// `KiB` ... `TiB` and `K` ... `T` are powers of 1024, `kB` ... `TB` powers of 1000; digits with an optional fraction,
/// no sign.
/// `bad_setting` names the text and what was expected. `what` names the setting in the message.
result<std::uint64_t> parse_bytes(std::string_view text, std::string_view what = "size");
/// Parses every form of `byte_limit`. Zero, negative, NaN and more than 100 % are refused.
result<byte_limit> parse_limit(std::string_view text, std::string_view what = "limit");
/// A list with `,` or `+` between its parts.
result<std::vector<pool_spec>> parse_pools(std::string_view text, std::string_view what = "pools");
/// `0,2`, UUIDs, `auto`, `auto:2`, `all`, `none`; an empty text is none. A name twice is refused.
result<device_choice> parse_devices(std::string_view text, std::string_view what = "devices");
/// `4.00 GiB`: at most two decimals, the unit that leaves at least one digit before the point.
std::string format_bytes(std::uint64_t bytes);

/// Name and value pairs, as the environment holds them (only names that begin with GPUMEM_ matter).
using environment = std::vector<std::pair<std::string, std::string>>;
/// GPUMEM_* of this process; of a job's ranks, `GPUMEM_LIMIT_R2` is GPUMEM_LIMIT of rank 2 alone.
environment process_environment();

class settings {
 public:
  // One field an option, in the order of options.def.
  std::string policy = "growth";
  byte_limit limit;
  std::optional<limit_scope> scope;  ///< none: `process` when preloaded without pools, else `pool`
  std::optional<std::uint64_t> headroom_bytes;
  std::optional<std::uint64_t> reserve_bytes;
  std::vector<pool_spec> pools;
  stream_id_mode stream_ids = stream_id_mode::query;
  stream_reuse reuse = stream_reuse::poll;
  std::uint64_t free_wait_ms = 10'000;
  bool thread_cache = true;
  device_choice devices;
  bool soft_placement = false;
  std::string group;
  byte_limit group_limit;
  std::string shared_folder;  ///< empty: the usual one
  bool publish = true;
  bool ipc = false;
  byte_limit slack;
  std::string backing = "plain";  ///< or `mapped`
  std::string plan_path;
  std::string policy_library_path;  ///< find_policy reads the variable itself
  std::string cuda_driver_path;     ///< load_cuda_driver reads the variable itself
  std::string nvml_path;            ///< load_nvml reads the variable itself
  bool torch = false;               ///< read by the Python package
  std::string trace_path;
  std::string stats_path;  ///< `exit`: a summary on stderr at exit
  bool oom_log = true;
  std::string oom_file_path;
  bool verbose = false;
  bool strict = false;

  /// Sets an option by its name in small letters (`limit`) from text, as the environment would. The last `set` or
  /// `apply` wins. A bad value is refused and the former one stays.
  status set(std::string_view option, std::string_view value, setting_source from = setting_source::code);

  /// Applies `GPUMEM_*` over what code set. Every bad or unknown variable becomes one line of `problems`
  /// (variable, value, what was expected) and keeps its former value. A bad limit, reserve, pool, group or device
  /// setting is an error, whatever `strict` says: a limit that somebody asked for never becomes none. In strict mode
  /// the first problem of any kind is the error. On an error nothing is changed.
  status apply(const environment& variables, std::vector<std::string>* problems = nullptr);

  /// These settings with the `_<ordinal>` overrides of one device applied. Requires `apply` before.
  [[nodiscard]] settings for_device(int ordinal) const;

  /// Overrides of devices that are not among `ordinals`, as `GPUMEM_LIMIT_1=8GiB`.
  [[nodiscard]] std::vector<std::string> overrides_of_others(const std::vector<int>& ordinals) const;

  /// Where an option's value came from; `default_value` for names that do not exist.
  [[nodiscard]] setting_source source(std::string_view option) const noexcept;
  /// An option's value as text that `set` reads again; empty where nothing is set and for names that do not exist.
  [[nodiscard]] std::string text(std::string_view option) const;
  /// One line an option: `GPUMEM_POLICY=growth (default)`, as GPUMEM_VERBOSE prints it.
  [[nodiscard]] std::string describe() const;

 private:
  struct override_text {
    int ordinal;
    std::string option;
    std::string value;
  };
  std::map<std::string, setting_source, std::less<>> sources_;
  std::map<std::string, std::string, std::less<>> overruled_;  // what code had set where the environment won
  std::vector<override_text> overrides_;
};

/// A row of options.def, for tools and documentation.
struct option_row {
  std::string_view option;    ///< `limit`
  std::string_view variable;  ///< `GPUMEM_LIMIT`
  std::string_view values;
  std::string_view default_text;
  std::string_view help;
};
const std::vector<option_row>& option_table();
/// The README's table of variables, in Markdown.
std::string option_table_markdown();

}  // namespace gpumem
