/// The class `settings`: binds the rows of options.def to their fields, parses and prints values, applies precedence.
///
/// Default < code < environment < environment of one device. The code below the table names no option. A new option is
/// a row in options.def, a field in settings.hpp and, for a new form of values, a parser and, for a new type, a `show`.
#include "gpumem/settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "job_rank.hpp"
#include "text.hpp"
#include "trusted_path.hpp"
#include "units.hpp"

extern "C" char** environ;

namespace gpumem {
namespace {

constexpr std::string_view prefix = "GPUMEM_";
/// No setting: the folder of recordings that gpumem's tests replay.
constexpr std::string_view recordings_variable = "GPUMEM_TRACES";

// --- forms: parse_<form>(text, name for messages) returns the field's value --------------------------------------

status bad_value(std::string_view setting, std::string_view text, std::string_view expected) {
  return {errc::bad_setting, fmt::format("{}={}: expected {}", setting, printable(text), expected)};
}

result<std::string> parse_name(std::string_view text, std::string_view setting) {
  const std::string_view name = trimmed(text);
  if (name.empty()) return bad_value(setting, text, "a name");
  return std::string{name};
}

/// A path. `%r` becomes the rank, so that each rank of a job has its own file.
result<std::string> parse_rank_path(std::string_view text, std::string_view /*what*/) { return with_rank(text); }

/// Any text; an empty text disables the option.
result<std::string> parse_path(std::string_view text, std::string_view /*what*/) { return std::string{text}; }

/// A name that becomes part of a file name.
result<std::string> parse_group(std::string_view text, std::string_view setting) {
  std::string name = with_rank(trimmed(text));
  if (name.size() > 64 || !is_alphanumeric(name, "._-") || name.starts_with('.')) {
    return bad_value(setting, text, "a name of at most 64 letters, digits, '.', '_' and '-', not '.' first");
  }
  return name;
}

/// Free memory differs between the starts of the members, so a share of it cannot be a common limit.
result<byte_limit> parse_group_limit(std::string_view text, std::string_view setting) {
  result<byte_limit> parsed = parse_limit(text, setting);
  if (!parsed || parsed->unit != byte_limit::kind::of_free) return parsed;
  return bad_value(setting, text, "bytes (4GiB) or a share of the device (30%)");
}

result<std::uint64_t> parse_milliseconds(std::string_view text, std::string_view setting) {
  if (lowered(trimmed(text)) == "inf") return settings::wait_forever_ms;
  const std::optional<std::uint64_t> ms = whole_number<std::uint64_t>(trimmed(text));
  if (!ms || *ms > std::uint64_t{1} << 40) return bad_value(setting, text, "milliseconds, a whole number, or inf");
  return *ms;
}

result<std::uint64_t> parse_event_count(std::string_view text, std::string_view setting) {
  const std::optional<std::uint64_t> count = whole_number<std::uint64_t>(trimmed(text));
  if (!count || *count > settings::most_history_events) {
    return bad_value(setting, text, fmt::format("a whole number, at most {}", settings::most_history_events));
  }
  return *count;
}

result<bool> parse_flag(std::string_view text, std::string_view setting) {
  const std::string word = lowered(trimmed(text));
  if (word == "1" || word == "true" || word == "on") return true;
  if (word == "0" || word == "false" || word == "off") return false;
  return bad_value(setting, text, "0 or 1");
}

/// The parser of an option that is one of a few words.
template <typename Value, std::size_t count>
struct choice {
  std::pair<std::string_view, Value> words[count];
  std::string_view expected;

  result<Value> operator()(std::string_view text, std::string_view setting) const {
    const auto* const found = std::ranges::find(words, trimmed(text), &std::pair<std::string_view, Value>::first);
    if (found != std::end(words)) return found->second;
    return bad_value(setting, text, expected);
  }
  [[nodiscard]] std::string word_for(Value value) const {
    const auto* const found = std::ranges::find(words, value, &std::pair<std::string_view, Value>::second);
    return found == std::end(words) ? "" : std::string{found->first};
  }
};
constexpr choice<std::string_view, 2> parse_backing{{{"plain", "plain"}, {"mapped", "mapped"}}, "plain or mapped"};
constexpr choice<stream_id_mode, 2> parse_stream_ids{
    {{"query", stream_id_mode::query}, {"notify", stream_id_mode::notify}}, "query or notify"};
constexpr choice<limit_scope, 2> parse_limit_scope{{{"pool", limit_scope::pool}, {"process", limit_scope::process}},
                                                   "pool or process"};
constexpr choice<stream_reuse, 3> parse_stream_reuse{
    {{"poll", stream_reuse::poll}, {"device", stream_reuse::device}, {"host", stream_reuse::host}},
    "poll, device or host"};

// --- show(value) formats a value so that the parser reads it back; empty if the option is not set ----------------

std::string show(const std::string& text) { return text; }
std::string show(bool flag) { return flag ? "1" : "0"; }
std::string show(std::uint64_t number) { return fmt::format("{}", number); }
std::string show(const std::optional<std::uint64_t>& bytes) { return bytes ? exact_bytes(*bytes) : ""; }
std::string show(const byte_limit& limit) { return limit ? limit.to_string() : ""; }
std::string show(const std::vector<pool_spec>& pools) { return pools_text(pools); }
std::string show(const device_choice& devices) { return devices.to_string(); }
std::string show(stream_id_mode mode) { return parse_stream_ids.word_for(mode); }
std::string show(stream_reuse reuse) { return parse_stream_reuse.word_for(reuse); }
std::string show(const std::optional<limit_scope>& value) { return value ? parse_limit_scope.word_for(*value) : ""; }

// --- the table ---------------------------------------------------------------------------------------------------

enum class scope : std::uint8_t { each_device, process };
enum class bad_value : std::uint8_t { warns, refuses };

/// The option's name in code: the column NAME in small letters.
struct small_name {
  std::array<char, 32> letters{};
  std::size_t length = 0;

  consteval explicit small_name(std::string_view name) : length{name.size()} {
    for (std::size_t i = 0; i < name.size(); ++i) {
      letters.at(i) = name[i] >= 'A' && name[i] <= 'Z' ? static_cast<char>(name[i] - 'A' + 'a') : name[i];
    }
  }
};
template <small_name of>
constexpr std::string_view in_small_letters{of.letters.data(), of.length};

/// A row of options.def with the code behind it.
struct row : option_row {
  bool guards;  ///< a bad value stops the allocator from opening
  status (*read)(settings&, std::string_view text, std::string_view what);
  std::string (*show)(const settings&);
  bool (*is_default)(const settings&);
};

template <typename Value, typename Field>
status store(result<Value> parsed, Field& field) {
  if (!parsed) return parsed.why();
  field = *std::move(parsed);
  return {};
}

constexpr row options[] = {
#define OPTION(field, NAME, form, reach, guard, values, default_text, help)                                            \
  {{in_small_letters<small_name{#NAME}>, "GPUMEM_" #NAME, values, default_text, help,                                  \
    scope::reach == scope::each_device},                                                                               \
   bad_value::guard == bad_value::refuses,                                                                             \
   [](settings& s, std::string_view text, std::string_view what) { return store(parse_##form(text, what), s.field); }, \
   [](const settings& s) { return show(s.field); },                                                                    \
   [](const settings& s) { return s.field == settings{}.field; }},
#include "options.def"
#undef OPTION
};

/// Finds the option by its name or its variable, as `column` selects; null if there is none.
const row* find(std::string_view option_row::*column, std::string_view text) noexcept {
  const auto* const found = std::ranges::find(options, text, column);
  return found == std::end(options) ? nullptr : found;
}

/// Returns the value as text, or the default's description if it is not set.
std::string shown(const row& option, const settings& values) {
  const std::string text = option.show(values);
  return text.empty() ? std::string{option.default_text} : printable(text, 4096);
}

std::string assigned(std::string_view variable, std::string_view value) {
  return fmt::format("{}={}", variable, printable(value, 4096));
}

// --- variables ---------------------------------------------------------------------------------------------------

/// The parts of `GPUMEM_LIMIT_1`. Without an ordinal at the end, `base` is the whole name.
struct variable_name {
  std::string_view base;
  std::optional<int> ordinal;
};

/// Requires a name that begins with the prefix; `base` then does too.
variable_name split(std::string_view name) {
  const std::size_t bar = name.rfind('_');
  const std::string_view digits = name.substr(bar + 1);
  const std::optional<int> ordinal = whole_number<int>(digits);
  const bool plain = ordinal && bar >= prefix.size() && (digits == "0" || digits.front() != '0');
  return plain ? variable_name{name.substr(0, bar), ordinal} : variable_name{name, {}};
}

std::vector<std::string_view> option_names() {
  std::vector<std::string_view> names;
  for (const row& o : options) names.push_back(o.option);
  return names;
}

std::string unknown_variable(std::string_view variable, std::string_view value, const variable_name& name,
                             const row* close) {
  const std::string problem = fmt::format("{}={}: unknown variable; ", printable(variable), printable(value));
  const std::string_view ordinal = variable.substr(name.base.size());
  if (close != nullptr) return problem + fmt::format("did you mean {}{}?", close->variable, ordinal);
  std::vector<std::string_view> known;
  for (const row& o : options) known.push_back(o.variable.substr(prefix.size()));
  return problem + fmt::format("expected GPUMEM_ and one of {}", fmt::join(known, ", "));
}

/// Whether a misspelt name probably means a setting that restricts memory: `GPUMEM_LIMTI`, `GPUMEM_LIMIT_x`.
bool means_a_guard(std::string_view variable, const row* close) {
  return (close != nullptr && close->guards) || std::ranges::any_of(options, [&](const row& option) {
           return option.guards && variable.starts_with(fmt::format("{}_", option.variable));
         });
}

}  // namespace

environment process_environment() {
  std::map<std::string, std::string> all;
  std::map<std::string, std::string> of_this_rank;
  const std::string rank = fmt::format("_R{}", this_rank() ? this_rank()->rank : 0);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(prefix) || name.size() == text.size()) continue;
    const std::string_view value = text.substr(name.size() + 1);
    const std::size_t bar = name.rfind("_R");
    const bool of_a_rank =
        bar != std::string_view::npos && bar >= prefix.size() && whole_number<std::uint64_t>(name.substr(bar + 2));
    if (!of_a_rank) {
      all.emplace(name, value);
    } else if (name.substr(bar) == rank) {
      of_this_rank.emplace(name.substr(0, bar), value);
    }
  }
  of_this_rank.merge(all);  // existing entries win
  return obeyed_variables({of_this_rank.begin(), of_this_rank.end()});
}

status settings::set(std::string_view option_name, std::string_view value, setting_source source_kind) {
  const row* const o = find(&option_row::option, option_name);
  if (o == nullptr) {
    return {errc::bad_setting, fmt::format("{}={}: unknown option; expected one of {}", printable(option_name),
                                           printable(value), fmt::join(option_names(), ", "))};
  }
  const bool by_environment = source_kind == setting_source::environment;
  const bool over_code = by_environment && source(option_name) == setting_source::code;
  const std::string former = over_code ? shown(*o, *this) : "";
  if (status read = o->read(*this, value, by_environment ? o->variable : o->option); !read) return read;

  const std::string name{option_name};
  if (over_code && former != shown(*o, *this)) overruled_.insert_or_assign(name, former);
  if (!by_environment) overruled_.erase(name);
  origins_.insert_or_assign(name, origin{source_kind, assigned(o->variable, value), o->show(*this)});
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
    if (!std::string_view{variable}.starts_with(prefix) || variable == recordings_variable) continue;
    if (const row* const o = find(&option_row::variable, variable)) {
      const status s = next.set(o->option, value, setting_source::environment);
      if (!s) add(s.message(), o->guards);
      continue;
    }
    const variable_name name = split(variable);
    const row* const o = name.ordinal ? find(&option_row::variable, name.base) : nullptr;
    if (o == nullptr) {
      const row* const close = find(&option_row::option, closest_name(name.base.substr(prefix.size()), option_names()));
      add(unknown_variable(variable, value, name, close), means_a_guard(variable, close));
    } else if (!o->per_device) {
      const std::string given = assigned(variable, value);
      add(fmt::format("{0}: {1} cannot differ between devices; expected {1}", given, o->variable), o->guards);
    } else if (settings scratch; const status s = o->read(scratch, value, variable)) {
      std::erase_if(next.overrides_, [&of = variable](const override_text& each) { return each.variable == of; });
      next.overrides_.push_back({*name.ordinal, std::string{o->option}, variable, value});
    } else {
      add(s.message(), o->guards);
    }
  }
  if (problems != nullptr) problems->insert(problems->end(), found.begin(), found.end());
  if (!found.empty() && next.strict) refusal = found.front();
  if (!refusal.empty()) return {errc::bad_setting, refusal};
  *this = std::move(next);
  return {};
}

settings settings::for_device(int ordinal) const {
  settings device = *this;
  device.overrides_.clear();
  for (const override_text& each : overrides_) {
    if (each.ordinal != ordinal) continue;
    static_cast<void>(device.set(each.option, each.value, setting_source::environment).ok());  // checked by `apply`
    device.origins_.at(each.option).assignment = assigned(each.variable, each.value);
  }
  return device;
}

std::vector<std::string> settings::overrides_of_others(const std::vector<int>& ordinals) const {
  std::vector<std::string> overrides;
  for (const auto& [ordinal, name, variable, value] : overrides_) {
    if (std::ranges::find(ordinals, ordinal) == ordinals.end()) overrides.push_back(assigned(variable, value));
  }
  return overrides;
}

setting_source settings::source(std::string_view option_name) const noexcept {
  if (const auto set = origins_.find(option_name); set != origins_.end()) return set->second.source;
  const row* const o = find(&option_row::option, option_name);
  return o == nullptr || o->is_default(*this) ? setting_source::default_value : setting_source::code;
}

std::string settings::text(std::string_view option_name) const {
  const row* const o = find(&option_row::option, option_name);
  return o == nullptr ? std::string{} : o->show(*this);
}

std::string settings::assignment(std::string_view option_name) const {
  const auto set = origins_.find(option_name);
  if (set != origins_.end() && set->second.text == text(option_name)) return set->second.assignment;
  const row* const o = find(&option_row::option, option_name);
  return o == nullptr ? std::string{} : assigned(o->variable, o->show(*this));
}

std::string settings::describe() const {
  constexpr std::array<std::string_view, 3> sources{"default", "code", "environment"};
  std::string text;
  for (const row& o : options) {
    const auto overruled = overruled_.find(o.option);
    const std::string suffix = overruled == overruled_.end() ? "" : ", over code's " + overruled->second;
    text += fmt::format("{}={} ({}{})\n", o.variable, shown(o, *this),
                        sources.at(static_cast<std::size_t>(source(o.option))), suffix);
  }
  for (const auto& [ordinal, name, variable, value] : overrides_) {
    text += assigned(variable, shown(*find(&option_row::option, name), for_device(ordinal))) + " (environment)\n";
  }
  text.pop_back();
  return text;
}

const std::vector<option_row>& option_table() {
  static const auto* const table = new std::vector<option_row>(std::begin(options), std::end(options));
  return *table;
}

}  // namespace gpumem
