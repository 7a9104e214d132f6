/// Settings: every option of gpumem as a value, and its parser.
///
/// The fields are those of the table in src/base/options.def. Code sets options with `set` or through the fields. The
/// environment (`GPUMEM_<NAME>`, and `GPUMEM_<NAME>_<ordinal>` for one device) wins over code. Not synchronised: fill
/// it in before passing it on.
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

/// `4GiB`, `30%` (of the device's memory) or `80%free` (of the memory free at start).
struct byte_limit {
  enum class kind : std::uint8_t { none, bytes, of_total, of_free };
  kind unit = kind::none;
  std::uint64_t bytes = 0;  ///< for `bytes`
  double fraction = 0;      ///< for `of_total` and `of_free`, in (0, 1]

  [[nodiscard]] explicit operator bool() const noexcept { return unit != kind::none; }
  /// In bytes, rounded down; `total_bytes` if there is no limit.
  [[nodiscard]] std::uint64_t resolve(std::uint64_t total_bytes, std::uint64_t free_bytes) const noexcept;
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const byte_limit&, const byte_limit&) = default;
};

/// One logical device: `8GiB`, `train:8GiB` or `train:8GiB:caching`.
struct pool_spec {
  std::string name;    ///< empty: its ordinal
  byte_limit limit;    ///< a fraction is of GPUMEM_LIMIT if set, else of the device
  std::string policy;  ///< empty: GPUMEM_POLICY
  friend bool operator==(const pool_spec&, const pool_spec&) = default;
};

/// The choice among visible GPUs: all, none, named ones, or a number of the least busy ones.
struct device_choice {
  enum class kind : std::uint8_t { all, none, named, automatic };
  kind how = kind::all;
  std::vector<std::string> names;  ///< for `named`: ordinals, UUIDs (`GPU-...`, `MIG-...`) or prefixes of UUIDs
  unsigned count = 1;              ///< for `automatic`

  [[nodiscard]] explicit operator bool() const noexcept { return how != kind::all; }
  /// Text for `parse_devices`; empty for `all`, `none` for none.
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const device_choice&, const device_choice&) = default;
};

/// How gpumem learns that a stream has ended (see docs/architecture.md, stream order).
enum class stream_id_mode : std::uint8_t {
  query,   ///< asks the device for the stream's id at each call
  notify,  ///< the program calls `stream_release` before it destroys a stream
};

/// How a stream gets memory that another stream freed and may still use.
enum class stream_reuse : std::uint8_t {
  device,  ///< the new stream waits for a fence on the device; the host continues
  poll,    ///< only once a fence is seen to be done; no stream waits for another
  host,    ///< the host waits for the fence before it takes more memory
};

/// The memory that GPUMEM_LIMIT covers in a process with gpumem preloaded.
enum class limit_scope : std::uint8_t {
  pool,     ///< gpumem's own segments
  process,  ///< all device memory of the process
};

enum class setting_source : std::uint8_t { default_value, code, environment };

/// Reads digits with an optional fraction, without sign, and a unit. `KiB` ... `TiB` and `K` ... `T` are powers of
/// 1024, `kB` ... `TB` powers of 1000. `bad_setting` has the text and the expected form; `setting` names the setting
/// there.
result<std::uint64_t> parse_bytes(std::string_view text, std::string_view setting = "size");
/// Parses every form of `byte_limit`. Refuses zero, negative, NaN and more than 100 %.
result<byte_limit> parse_limit(std::string_view text, std::string_view setting = "limit");
/// Reads a list separated by `,` or `+`.
result<std::vector<pool_spec>> parse_pools(std::string_view text, std::string_view setting = "pools");
/// Reads `0,2`, UUIDs, `auto`, `auto:2`, `all`, `none`; an empty text is none. Refuses a repeated name.
result<device_choice> parse_devices(std::string_view text, std::string_view setting = "devices");
/// Formats as `4.00 GiB`: at most two decimals, in the largest unit with a value of at least 1.
std::string format_bytes(std::uint64_t bytes);

/// Name and value pairs of the environment. Only names that begin with GPUMEM_ matter.
using environment = std::vector<std::pair<std::string, std::string>>;
/// GPUMEM_* of this process. In rank 2 of a job, `GPUMEM_LIMIT_R2` replaces GPUMEM_LIMIT.
environment process_environment();

class settings {
 public:
  // One field per option, in the order of options.def.
  std::string policy = "growth";
  byte_limit limit;
  std::optional<limit_scope> scope;  ///< none: `process` when preloaded without pools, else `pool`
  std::optional<std::uint64_t> headroom_bytes = std::uint64_t{256} << 20;
  std::optional<std::uint64_t> reserve_bytes;
  std::vector<pool_spec> pools;
  stream_id_mode stream_ids = stream_id_mode::query;
  stream_reuse reuse = stream_reuse::poll;
  static constexpr std::uint64_t wait_forever_ms = UINT64_MAX;
  std::uint64_t free_wait_ms = 10'000;
  bool thread_cache = true;
  device_choice devices;
  bool soft_placement = false;
  std::optional<std::uint64_t> idle_bytes;  ///< none: the smaller of 1 GiB and 5 % of the card
  std::string group;
  byte_limit group_limit;
  std::string job;  ///< applies to preloaded programs only
  byte_limit job_limit;
  std::string shared_folder;  ///< empty: the default folder
  bool publish = true;
  bool ipc = false;
  byte_limit slack;
  std::string backing = "plain";     ///< or `mapped`
  std::uint64_t exchange_rate = 96;  ///< microseconds per MiB
  std::string plan_path;
  std::string policy_library_path;  ///< find_policy reads the variable itself
  std::string cuda_driver_path;     ///< load_cuda_driver reads the variable itself
  std::string nvml_path;            ///< load_nvml reads the variable itself
  bool torch = false;               ///< read by the Python package
  std::string trace_path;
  static constexpr std::uint64_t most_history_events = 100'000'000;
  std::uint64_t history_events = 0;
  std::string stats_path;  ///< `exit`: a summary on stderr at exit
  bool oom_log = true;
  bool oom_advice = false;
  std::string oom_file_path;
  bool verbose = false;
  bool strict = false;

  /// Sets an option by its name in small letters (`limit`) from text, as the environment does. The last `set` or
  /// `apply` wins. Refuses a bad value and keeps the previous one.
  status set(std::string_view option, std::string_view value, setting_source source_kind = setting_source::code);

  /// Applies `GPUMEM_*` over the values set by code. Every bad or unknown variable adds one line to `problems`
  /// (variable, value, expected values), and its option keeps its value. A bad limit, reserve, pool, group or device
  /// setting is an error regardless of `strict`, so that a requested limit never becomes none. In strict mode the first
  /// problem of any kind is the error. On an error nothing changes.
  status apply(const environment& variables, std::vector<std::string>* problems = nullptr);

  /// These settings with the `_<ordinal>` overrides of one device. Requires `apply` before.
  [[nodiscard]] settings for_device(int ordinal) const;

  /// The overrides for devices that are not among `ordinals`, such as `GPUMEM_LIMIT_1=8GiB`.
  [[nodiscard]] std::vector<std::string> overrides_of_others(const std::vector<int>& ordinals) const;

  /// The origin of an option's value; `default_value` for unknown names.
  [[nodiscard]] setting_source source(std::string_view option) const noexcept;
  /// An option's value as text for `set`; empty if it is not set and for unknown names.
  [[nodiscard]] std::string text(std::string_view option) const;
  /// An option as it was set, for messages: `GPUMEM_LIMIT_1=900GiB`. For a value set through its field or by default,
  /// the option's variable and `text`. Empty for unknown names.
  [[nodiscard]] std::string assignment(std::string_view option) const;
  /// One line per option: `GPUMEM_POLICY=growth (default)`, as GPUMEM_VERBOSE prints it.
  [[nodiscard]] std::string describe() const;

 private:
  struct override_text {
    int ordinal;
    std::string option;
    std::string variable;
    std::string value;
  };
  struct origin {
    setting_source source;
    std::string assignment;  ///< `GPUMEM_LIMIT_1=0.5TiB`
    std::string text;        ///< the result of `text` when it was set: `512GiB`
  };
  std::map<std::string, origin, std::less<>> origins_;
  std::map<std::string, std::string, std::less<>> overruled_;  // values set by code that the environment replaced
  std::vector<override_text> overrides_;
};

/// A row of options.def, for tools and documentation.
struct option_row {
  std::string_view option;    ///< `limit`
  std::string_view variable;  ///< `GPUMEM_LIMIT`
  std::string_view values;
  std::string_view default_text;
  std::string_view help;
  bool per_device;  ///< `GPUMEM_LIMIT_1` overrides the option for one device
};
const std::vector<option_row>& option_table();

}  // namespace gpumem
