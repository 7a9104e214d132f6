/// The class `settings`: binds the rows of options.def to their fields, parses and prints values, applies precedence.
///
/// Default < code < environment < environment of one device. The code below the table names no option. A new option is
/// a row in options.def, a field in settings.hpp and, for a new form of values, a read_/show_ pair.
#include "gpumem/settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>

#include "job_rank.hpp"
#include "text.hpp"
#include "units.hpp"

extern "C" char** environ;

namespace gpumem {
namespace {

constexpr std::string_view prefix = "GPUMEM_";

// --- forms: read_<form>(text, name for messages, field) and show_<form>(field), empty if not set -------------------

status refused(std::string_view what, std::string_view text, std::string_view expected) {
  return {errc::bad_setting, fmt::format("{}={}: expected {}", what, printable(text), expected)};
}

status read_name(std::string_view text, std::string_view what, std::string& into) {
  const std::string_view name = trimmed(text);
  if (name.empty()) return refused(what, text, "a name");
  into = name;
  return {};
}
std::string show_name(const std::string& name) { return name; }

/// A path; `%r` gives each rank of a job its own.
status read_rank_path(std::string_view text, std::string_view /*what*/, std::string& into) {
  into = with_rank(text);
  return {};
}
std::string show_rank_path(const std::string& path) { return path; }

/// Any text; empty switches it off.
status read_path(std::string_view text, std::string_view /*what*/, std::string& into) {
  into = text;
  return {};
}
std::string show_path(const std::string& path) { return path; }

status read_flag(std::string_view text, std::string_view what, bool& into) {
  const std::string word = lowered(trimmed(text));
  const bool yes = word == "1" || word == "true" || word == "on";
  if (!yes && word != "0" && word != "false" && word != "off") return refused(what, text, "0 or 1");
  into = yes;
  return {};
}
std::string show_flag(bool flag) { return flag ? "1" : "0"; }

template <typename Value, typename Field>
status store(result<Value> parsed, Field& into) {
  if (!parsed) return parsed.why();
  into = *std::move(parsed);
  return {};
}

status read_limit(std::string_view text, std::string_view what, byte_limit& into) {
  return store(parse_limit(text, what), into);
}
std::string show_limit(const byte_limit& limit) { return limit.to_string(); }

status read_slack(std::string_view text, std::string_view what, byte_limit& into) {
  return store(parse_share_or_bytes(text, what), into);
}
std::string show_slack(const byte_limit& slack) { return slack ? slack.to_string() : ""; }

status read_backing(std::string_view text, std::string_view what, std::string& into) {
  const std::string_view word = trimmed(text);
  if (word != "plain" && word != "mapped") return refused(what, text, "plain or mapped");
  into = word;
  return {};
}
std::string show_backing(const std::string& backing) { return backing; }

status read_reserve(std::string_view text, std::string_view what, std::optional<std::uint64_t>& into) {
  return store(parse_bytes(text, what), into);
}
std::string show_reserve(const std::optional<std::uint64_t>& bytes) { return bytes ? exact_bytes(*bytes) : ""; }

status read_pools(std::string_view text, std::string_view what, std::vector<pool_spec>& into) {
  return store(parse_pools(text, what), into);
}
std::string show_pools(const std::vector<pool_spec>& pools) { return pools_text(pools); }

status read_devices(std::string_view text, std::string_view what, device_choice& into) {
  return store(parse_devices(text, what), into);
}
std::string show_devices(const device_choice& devices) { return devices.to_string(); }

/// A name that becomes part of a file name.
status read_group(std::string_view text, std::string_view what, std::string& into) {
  constexpr std::size_t longest = 64;
  constexpr std::string_view allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  const std::string name = with_rank(trimmed(text));
  if (name.size() > longest || name.find_first_not_of(allowed) != std::string_view::npos || name.starts_with('.')) {
    return refused(what, text, "a name of at most 64 letters, digits, '.', '_' and '-', not '.' first");
  }
  into = name;
  return {};
}
std::string show_group(const std::string& group) { return group; }

/// Free memory differs between the starts of the members, so a share of it cannot be a common limit.
status read_group_limit(std::string_view text, std::string_view what, byte_limit& into) {
  result<byte_limit> parsed = parse_limit(text, what);
  if (parsed && parsed->unit == byte_limit::kind::of_free) {
    return refused(what, text, "bytes (4GiB) or a share of the device (30%)");
  }
  return store(std::move(parsed), into);
}
std::string show_group_limit(const byte_limit& limit) { return limit.to_string(); }

status read_stream_ids(std::string_view text, std::string_view what, stream_id_mode& into) {
  const std::string_view word = trimmed(text);
  if (word != "query" && word != "notify") return refused(what, text, "query or notify");
  into = word == "query" ? stream_id_mode::query : stream_id_mode::notify;
  return {};
}
std::string show_stream_ids(stream_id_mode mode) { return mode == stream_id_mode::query ? "query" : "notify"; }

status read_stream_reuse(std::string_view text, std::string_view what, stream_reuse& into) {
  const std::string_view word = trimmed(text);
  if (word == "device") {
    into = stream_reuse::device;
  } else if (word == "poll") {
    into = stream_reuse::poll;
  } else if (word == "host") {
    into = stream_reuse::host;
  } else {
    return refused(what, text, "poll, device or host");
  }
  return {};
}
std::string show_stream_reuse(stream_reuse reuse) {
  if (reuse == stream_reuse::poll) return "poll";
  return reuse == stream_reuse::host ? "host" : "device";
}

status read_milliseconds(std::string_view text, std::string_view what, std::uint64_t& into) {
  const std::string_view digits = trimmed(text);
  std::uint64_t ms = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ms);
  constexpr std::uint64_t most = std::uint64_t{1} << 40;
  if (error != std::errc{} || end != digits.data() + digits.size() || ms > most) {
    return refused(what, text, "milliseconds, a whole number");
  }
  into = ms;
  return {};
}
std::string show_milliseconds(std::uint64_t ms) { return fmt::format("{}", ms); }

status read_limit_scope(std::string_view text, std::string_view what, std::optional<limit_scope>& into) {
  const std::string_view word = trimmed(text);
  if (word != "pool" && word != "process") return refused(what, text, "pool or process");
  into = word == "pool" ? limit_scope::pool : limit_scope::process;
  return {};
}
std::string show_limit_scope(const std::optional<limit_scope>& of) {
  if (!of) return "";
  return *of == limit_scope::pool ? "pool" : "process";
}

/// The forms of settings that restrict memory or cards. A bad value of one stops the allocator from opening, because
/// ignoring it would give the program more than intended.
constexpr bool guards_memory(std::string_view form) noexcept {
  constexpr std::array<std::string_view, 7> forms{"limit",   "limit_scope", "reserve",    "pools",
                                                  "devices", "group",       "group_limit"};
  return std::find(forms.begin(), forms.end(), form) != forms.end();
}

// --- the table ---------------------------------------------------------------------------------------------------

enum class scope : std::uint8_t { each_device, process };

/// The option's name as code writes it: the column NAME in small letters.
struct small_name {
  std::array<char, 32> letters{};
  std::size_t length = 0;

  consteval explicit small_name(std::string_view name) : length{name.size()} {
    for (std::size_t i = 0; i < name.size(); ++i) {
      letters.at(i) = name[i] >= 'A' && name[i] <= 'Z' ? static_cast<char>(name[i] - 'A' + 'a') : name[i];
    }
  }
  [[nodiscard]] constexpr std::string_view view() const noexcept { return {letters.data(), length}; }
};

/// A row of options.def with the code behind it.
struct option {
  small_name name;
  std::string_view variable;
  scope reach;
  bool guards;  ///< `guards_memory` of its form
  std::string_view values;
  std::string_view default_text;
  std::string_view help;
  status (*read)(settings&, std::string_view text, std::string_view what);
  std::string (*show)(const settings&);
  bool (*same)(const settings&, const settings&);
};

constexpr option options[] = {
#define OPTION(field, NAME, form, reach, values, default_text, help)                                           \
  {small_name{#NAME},                                                                                          \
   "GPUMEM_" #NAME,                                                                                            \
   scope::reach,                                                                                               \
   guards_memory(#form),                                                                                       \
   values,                                                                                                     \
   default_text,                                                                                               \
   help,                                                                                                       \
   [](settings& s, std::string_view text, std::string_view what) { return read_##form(text, what, s.field); }, \
   [](const settings& s) { return show_##form(s.field); },                                                     \
   [](const settings& a, const settings& b) { return a.field == b.field; }},
#include "options.def"
#undef OPTION
};

const option* find_option(std::string_view name) noexcept {
  const auto* const found =
      std::find_if(std::begin(options), std::end(options), [&](const option& o) { return o.name.view() == name; });
  return found == std::end(options) ? nullptr : found;
}

const option* find_variable(std::string_view variable) noexcept {
  const auto* const found =
      std::find_if(std::begin(options), std::end(options), [&](const option& o) { return o.variable == variable; });
  return found == std::end(options) ? nullptr : found;
}

/// The value as text, or words if it is not set.
std::string shown(const option& o, const settings& s) {
  const std::string text = o.show(s);
  return text.empty() ? std::string{o.default_text} : printable(text, 4096);
}

const settings& defaults() {
  static const auto* const the_defaults = new settings;
  return *the_defaults;
}

// --- variables ---------------------------------------------------------------------------------------------------

/// The parts of `GPUMEM_LIMIT_1`; the whole name and no ordinal if it does not end in one.
struct variable_name {
  std::string_view base;
  std::optional<int> ordinal;
};

/// Requires a name that begins with the prefix; so does `base`.
variable_name split(std::string_view name) {
  const std::size_t bar = name.rfind('_');
  if (bar < prefix.size()) return {name, {}};
  const std::string_view digits = name.substr(bar + 1);
  int ordinal = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
  const bool whole = error == std::errc{} && end == digits.data() + digits.size();
  const bool plain = whole && (digits == "0" || (digits.front() != '0' && digits.front() != '-'));
  return plain ? variable_name{name.substr(0, bar), ordinal} : variable_name{name, {}};
}

/// The option with the closest name; empty if none is close.
std::string_view closest_option(const variable_name& name) {
  std::vector<std::string_view> known;
  for (const option& o : options) known.push_back(o.variable.substr(prefix.size()));
  return closest_name(name.base.substr(prefix.size()), known);
}

std::string unknown_variable(std::string_view variable, std::string_view value, const variable_name& name) {
  std::vector<std::string_view> known;
  for (const option& o : options) known.push_back(o.variable.substr(prefix.size()));
  const std::string_view close = closest_option(name);
  const std::string problem = fmt::format("{}={}: unknown variable; ", printable(variable), printable(value));
  if (close.empty()) return problem + fmt::format("expected GPUMEM_ and one of {}", fmt::join(known, ", "));
  return problem +
         fmt::format("did you mean {}{}{}?", prefix, close, name.ordinal ? fmt::format("_{}", *name.ordinal) : "");
}

/// Whether a misspelt name means a setting that guards memory: `GPUMEM_LIMIT_x`, `GPUMEM_LIMTI`.
bool means_a_guard(std::string_view variable, const variable_name& name) {
  const std::string_view close = closest_option(name);
  return std::any_of(std::begin(options), std::end(options), [&](const option& o) {
    const bool extended =
        variable.size() > o.variable.size() && variable.starts_with(o.variable) && variable[o.variable.size()] == '_';
    return o.guards && (extended || o.variable.substr(prefix.size()) == close);
  });
}

/// Whether `variables` ask for strict mode; `otherwise` if they do not, or have a bad value.
bool asks_for_strict(const environment& variables, bool otherwise) {
  bool strict = otherwise;
  for (const auto& [name, value] : variables) {
    if (name == "GPUMEM_STRICT") static_cast<void>(read_flag(value, name, strict).ok());
  }
  return strict;
}

}  // namespace

namespace {

/// `GPUMEM_LIMIT_R2` is GPUMEM_LIMIT for rank 2 and is ignored by others. Outside a job a process has rank 0.
environment of_this_rank(environment all) {
  environment own;
  std::erase_if(all, [&](const auto& entry) {
    const std::string_view name = entry.first;
    const std::size_t bar = name.rfind("_R");
    if (bar == std::string_view::npos || bar < prefix.size() || bar + 2 == name.size() ||
        name.find_first_not_of("0123456789", bar + 2) != std::string_view::npos) {
      return false;
    }
    const unsigned rank = this_rank() ? this_rank()->rank : 0;
    if (name.substr(bar + 2) == std::to_string(rank)) own.emplace_back(name.substr(0, bar), entry.second);
    return true;
  });
  for (auto& mine : own) {
    std::erase_if(all, [&](const auto& entry) { return entry.first == mine.first; });
    all.push_back(std::move(mine));
  }
  return all;
}

}  // namespace

environment process_environment() {
  environment variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (!text.starts_with(prefix) || equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return of_this_rank(std::move(variables));
}

status settings::set(std::string_view option_name, std::string_view value, setting_source from) {
  const option* const o = find_option(option_name);
  if (o == nullptr) {
    std::vector<std::string_view> known;
    for (const option& each : options) known.push_back(each.name.view());
    return {errc::bad_setting, fmt::format("{}={}: unknown option; expected one of {}", printable(option_name),
                                           printable(value), fmt::join(known, ", "))};
  }
  const bool over_code = from == setting_source::environment && source(option_name) == setting_source::code;
  const std::string former = over_code ? shown(*o, *this) : "";
  const std::string_view what = from == setting_source::environment ? o->variable : o->name.view();
  if (status read = o->read(*this, value, what); !read) return read;

  const std::string name{option_name};
  if (over_code && former != shown(*o, *this)) overruled_.insert_or_assign(name, former);
  if (from != setting_source::environment) overruled_.erase(name);
  sources_.insert_or_assign(name, from);
  return {};
}

status settings::apply(const environment& variables, std::vector<std::string>* problems) {
  settings next = *this;
  std::vector<std::string> found;
  std::string refusal;  // the first problem that stops the allocator from opening
  const auto add = [&](std::string problem, bool stops) {
    if (stops && refusal.empty()) refusal = problem;
    found.push_back(std::move(problem));
  };
  for (const auto& [variable, value] : variables) {
    if (!std::string_view{variable}.starts_with(prefix)) continue;
    const option* o = find_variable(variable);
    if (o != nullptr) {
      if (const status s = next.set(o->name.view(), value, setting_source::environment); !s) {
        add(s.message(), o->guards);
      }
      continue;
    }
    const variable_name name = split(variable);
    o = name.ordinal ? find_variable(name.base) : nullptr;
    if (o == nullptr) {
      add(unknown_variable(variable, value, name), means_a_guard(variable, name));
    } else if (o->reach == scope::process) {
      add(fmt::format("{}={}: {} cannot differ between devices; expected {}", variable, printable(value), o->variable,
                      o->variable),
          o->guards);
    } else if (settings scratch; const status s = o->read(scratch, value, variable)) {
      std::erase_if(next.overrides_, [&](const override_text& each) {
        return each.ordinal == *name.ordinal && each.option == o->name.view();
      });
      next.overrides_.push_back({*name.ordinal, std::string{o->name.view()}, value});
    } else {
      add(s.message(), o->guards);
    }
  }
  if (problems != nullptr) problems->insert(problems->end(), found.begin(), found.end());
  if (!found.empty() && asks_for_strict(variables, strict)) refusal = found.front();
  if (!refusal.empty()) return {errc::bad_setting, refusal};
  *this = std::move(next);
  return {};
}

settings settings::for_device(int ordinal) const {
  settings device = *this;
  device.overrides_.clear();
  for (const override_text& each : overrides_) {
    if (each.ordinal != ordinal) continue;
    static_cast<void>(
        device.set(each.option, each.value, setting_source::environment).ok());  // `apply` has already read it
  }
  return device;
}

std::vector<std::string> settings::overrides_of_others(const std::vector<int>& ordinals) const {
  std::vector<std::string> out;
  for (const override_text& each : overrides_) {
    if (std::find(ordinals.begin(), ordinals.end(), each.ordinal) != ordinals.end()) continue;
    out.push_back(fmt::format("{}_{}={}", find_option(each.option)->variable, each.ordinal, printable(each.value)));
  }
  return out;
}

setting_source settings::source(std::string_view option_name) const noexcept {
  const auto recorded = sources_.find(option_name);
  if (recorded != sources_.end()) return recorded->second;
  const option* const o = find_option(option_name);
  return o == nullptr || o->same(*this, defaults()) ? setting_source::default_value : setting_source::code;
}

std::string settings::text(std::string_view option_name) const {
  const option* const o = find_option(option_name);
  return o == nullptr ? std::string{} : o->show(*this);
}

std::string settings::describe() const {
  std::string text;
  for (const option& o : options) {
    text += fmt::format("{}={} (", o.variable, shown(o, *this));
    switch (source(o.name.view())) {
      case setting_source::default_value:
        text += "default";
        break;
      case setting_source::code:
        text += "code";
        break;
      case setting_source::environment:
        text += "environment";
        break;
    }
    const auto overruled = overruled_.find(o.name.view());
    if (overruled != overruled_.end()) text += fmt::format(", over code's {}", overruled->second);
    text += ")\n";
  }
  for (const override_text& each : overrides_) {
    const settings device = for_device(each.ordinal);
    const option* const o = find_option(each.option);
    text += fmt::format("{}_{}={} (environment)\n", o->variable, each.ordinal, shown(*o, device));
  }
  text.pop_back();
  return text;
}

const std::vector<option_row>& option_table() {
  static const auto* const table = [] {
    auto* const rows = new std::vector<option_row>;
    for (const option& o : options) {
      rows->push_back({o.name.view(), o.variable, o.values, o.default_text, o.help});
    }
    return rows;
  }();
  return *table;
}

std::string option_table_markdown() {
  std::string text = "| variable | values | default | per device | meaning |\n|---|---|---|---|---|\n";
  for (const option& o : options) {
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", o.variable, o.values, o.default_text,
                        o.reach == scope::each_device ? "yes" : "no", o.help);
  }
  return text;
}

}  // namespace gpumem
