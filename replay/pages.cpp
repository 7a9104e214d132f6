#include "pages.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "output_file.hpp"

namespace gpumem::bench {
namespace {

using subcommands = std::vector<const CLI::App*>;

subcommands subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

/// The options that --help shows, including positionals.
std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

/// The program's own options, if they may follow the subcommand.
std::vector<const CLI::Option*> options_of_all(const CLI::App& app) {
  std::vector<const CLI::Option*> options;
  if (!app.get_fallthrough() || app.get_parent() == nullptr) return options;
  for (const CLI::Option* const option : options_of(*app.get_parent())) {
    if (!option->check_lname("help") && !option->check_lname("version")) options.push_back(option);
  }
  return options;
}

std::vector<const CLI::Option*> trailing_options(const CLI::App& app) {
  std::vector<const CLI::Option*> options = options_of(app);
  for (const CLI::Option* const option : options_of_all(app)) options.push_back(option);
  return options;
}

/// The option's spellings: `--limit`, `-h`.
std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* const option : trailing_options(app)) {
    for (const std::string& name : option->get_lnames()) flags.push_back(fmt::format("--{}", name));
    for (const std::string& name : option->get_snames()) flags.push_back(fmt::format("-{}", name));
  }
  return flags;
}

/// A line of a manual page, with roff's control characters escaped.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else if (c == '\n') {
      escaped += "\n.br\n";
    } else {
      escaped += c;
    }
  }
  const bool looks_like_one = !escaped.empty() && (escaped.front() == '.' || escaped.front() == '\'');
  return looks_like_one ? fmt::format("\\&{}", escaped) : escaped;
}

std::string option_entry(const CLI::Option& option) {
  std::string head = option.get_name(false, true);
  if (option.get_positional()) head = option.get_type_name();
  if (!option.get_positional() && option.get_type_size() != 0 && !option.get_type_name().empty())
    head += " " + option.get_type_name();
  std::string text = option.get_description();
  if (!option.get_default_str().empty()) text += fmt::format(" [default: {}]", option.get_default_str());
  return fmt::format(".TP\n.B {}\n{}\n", roff(head), roff(text));
}

std::string man_page(const CLI::App& top, const CLI::App& app, const std::string& version) {
  const bool whole = &top == &app;
  const std::string name = whole ? top.get_name() : top.get_name() + "-" + app.get_name();
  std::string page = fmt::format(".TH {} 1 \"\" \"gpumem {}\" \"gpumem\"\n.SH NAME\n{} \\- {}\n", name, version,
                                 roff(name), roff(app.get_description()));
  const std::string& called = app.get_name();
  const bool command = called == "run" || called == "simulate" || called == "predict";
  page += fmt::format(".SH SYNOPSIS\n.B {}\n{}{}\n", roff(whole ? name : top.get_name() + " " + app.get_name()),
                      whole ? "COMMAND [OPTIONS]" : "[OPTIONS]", command ? " \\-\\- COMMAND..." : "");
  if (whole) {
    page += ".SH COMMANDS\n";
    for (const CLI::App* const each : subcommands_of(top)) {
      page += fmt::format(".TP\n.BR {}\\-{} (1)\n{}\n", name, each->get_name(), roff(each->get_description()));
    }
  }
  page += ".SH OPTIONS\n";
  for (const CLI::Option* const option : trailing_options(app)) page += option_entry(*option);
  if (!app.get_footer().empty()) page += fmt::format(".SH NOTES\n{}\n", roff(app.get_footer()));
  return page;
}

std::string bash_completion(const CLI::App& app) {
  std::string cases;
  std::vector<std::string> names;
  for (const CLI::App* const each : subcommands_of(app)) {
    names.push_back(each->get_name());
    cases += fmt::format("    {}) words='{}' ;;\n", each->get_name(), fmt::join(flags_of(*each), " "));
  }
  return fmt::format(R"(# bash completion for {3}; made from its options
_{3}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} words i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${{COMP_WORDS[i]}} == -- ]]; then  # a program, and then its own words
      if ((i + 1 == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$current")
      else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
      fi
      return
    fi
  done
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W '{0} {1}' -- "$current")
    return
  fi
  case $command in
{2}    *) words='' ;;
  esac
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}}
complete -o filenames -F _{3} {3}
)",
                     fmt::join(names, " "), fmt::join(flags_of(app), " "), cases, app.get_name());
}

/// Text inside '...[...]' of zsh's _arguments.
std::string zsh_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\'') {
      escaped += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      escaped += '\\';
      escaped += c;
    } else {
      escaped += c == '\n' ? ' ' : c;
    }
  }
  return escaped;
}

std::string zsh_completion(const CLI::App& app) {
  std::string list;
  std::string cases;
  for (const CLI::App* const each : subcommands_of(app)) {
    list += fmt::format("    '{}:{}'\n", each->get_name(), zsh_text(each->get_description()));
    cases += fmt::format("    {})\n      _arguments", each->get_name());
    for (const CLI::Option* const option : trailing_options(*each)) {
      const bool value = option->get_type_size() != 0;
      for (const std::string& name : option->get_lnames()) {
        cases += fmt::format(" \\\n        '--{}[{}]{}'", name, zsh_text(option->get_description()),
                             value ? fmt::format(":{}:_files", zsh_text(option->get_type_name())) : "");
      }
    }
    cases += " \\\n        '*:file:_files'\n      ;;\n";
  }
  return fmt::format(R"(#compdef {0}
# made from the options of {0}
local -a commands
commands=(
{1})
if ((CURRENT == 2)); then
  _describe command commands
  return
fi
local command=$words[2]
local -i at=${{words[(I)--]}}
if ((at > 0 && at < CURRENT)); then
  shift $at words
  ((CURRENT -= at))
  _normal
  return
fi
shift words
((CURRENT -= 1))
case $command in
{2}esac
)",
                     app.get_name(), list, cases);
}

}  // namespace

status write_pages(const CLI::App& app, const std::string& version, const std::string& folder) {
  status written = replace_file(fmt::format("{}/{}.1", folder, app.get_name()), "--pages", man_page(app, app, version));
  for (const CLI::App* const each : subcommands_of(app)) {
    if (!written) return written;
    written = replace_file(fmt::format("{}/{}-{}.1", folder, app.get_name(), each->get_name()), "--pages",
                           man_page(app, *each, version));
  }
  if (written)
    written = replace_file(fmt::format("{}/{}.bash", folder, app.get_name()), "--pages", bash_completion(app));
  if (written) written = replace_file(fmt::format("{}/_{}", folder, app.get_name()), "--pages", zsh_completion(app));
  return written;
}

}  // namespace gpumem::bench
