/// The asking side: finds a peer's file, starts its process, reads the answer.
#include "peer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "assign_or_return.hpp"
#include "binary_trace.hpp"
#include "child.hpp"
#include "process_files.hpp"
#include "protocol.hpp"
#include "temporary_folder.hpp"
#include "text.hpp"

namespace gpumem::bench::peers {
namespace {

constexpr std::array known_peers{"torch", "torch_expandable", "tensorflow", "rmm"};

/// Wraps JSON for `result`: a bare json would convert to a list of one.
struct document {
  json value;
};

std::string file_of(const std::string& folder, const std::string& name) { return folder + "/" + name + ".json"; }

status about(const policy_row& row, const std::string& reason) {
  return {errc::unsupported, fmt::format("{}: {}", row.baseline, reason)};
}

std::string text_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Reads the file that scripts/peers wrote, and checks that the files it names still exist.
result<document> read_file(const policy_row& row) {
  std::ifstream file{row.peer};
  if (!file) return about(row, fmt::format("not installed ({} does not exist; scripts/peers writes it)", row.peer));
  const json description = json::parse(file, nullptr, false);
  if (!description.is_object()) return about(row, row.peer + " is no JSON object; run scripts/peers again");
  if (const std::string problem = text_at(description, "problem"); !problem.empty()) return about(row, problem);
  for (const char* key : {"library", "kind", "version", "installed"}) {
    if (text_at(description, key).empty()) {
      return about(row, fmt::format("{} has no text '{}'; run scripts/peers again", row.peer, key));
    }
  }
  std::error_code why;
  if (!std::filesystem::exists(description["installed"].get<std::string>(), why)) {
    return about(row, fmt::format("built against version {}, but {} no longer exists; run scripts/peers again",
                                  text_at(description, "version"), text_at(description, "installed")));
  }
  if (!std::filesystem::exists(description["library"].get<std::string>(), why)) {
    return about(row, fmt::format("{} no longer exists; run scripts/peers again", text_at(description, "library")));
  }
  return document{description};
}

json request_for(const json& description, const std::string& trace_path, const replay_setup& setup,
                 std::string_view kind) {
  return {{"protocol", 1},
          {"what", kind},
          {"library", description["library"]},
          {"kind", description["kind"]},
          {"one_stream", description.value("one_stream", false)},
          {"environment", description.value("environment", json::object())},
          {"trace", trace_path},
          {"capacity_bytes", setup.device.capacity_bytes},
          {"lag_ns", setup.lag_ns},
          {"shared_use", setup.shared_use},
          {"seed", setup.seed}};
}

std::string end_of(const sweep::child_outcome& outcome) {
  std::string_view text = outcome.err;
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const std::size_t line = text.rfind('\n');
  return printable(line == std::string_view::npos ? text : text.substr(line + 1), 300);
}

result<document> answer_of(const policy_row& row, const sweep::child_outcome& got, const replay_setup& setup) {
  if (got.timed_out) {
    return about(row, fmt::format("no answer within {} s (--peer-limit)", setup.peer_limit.count()));
  }
  const json answer = json::parse(got.output, nullptr, false);
  if (got.signal != 0 || got.exit_status != 0 || !answer.is_object()) {
    const std::string how = got.signal != 0        ? fmt::format("ended by signal {}", got.signal)
                            : got.exit_status != 0 ? fmt::format("ended with status {}", got.exit_status)
                                                   : "its answer is not JSON";
    return about(row, fmt::format("its process {}{}{}", how, got.err.empty() ? "" : ": ", end_of(got)));
  }
  if (const std::string failed = text_at(answer, "failed"); !failed.empty()) {
    return about(row, fmt::format("{}{}{}", failed, got.err.empty() ? "" : ": ", end_of(got)));
  }
  return document{answer};
}

/// The peer's answer: figures, never `failed`.
result<document> ask(const trace& recorded, const policy_row& row, const replay_setup& setup, std::string_view kind) {
  if (setup.cuda) return about(row, "peers run over the simulated driver; expected --device sim");
  ASSIGN_OR_RETURN(const auto description, read_file(row));
  const temporary_folder folder{"gpumem-peer-"};
  if (folder.path().empty()) return about(row, "no folder for its trace can be made in the temporary folder");
  const std::string trace_path = folder.path() + "/peer.gmtrace";
  if (status written = write_binary_trace(trace_path, recorded); !written) return about(row, written.message());
  const std::string program = own_program().string();
  ASSIGN_OR_RETURN(
      const auto got,
      sweep::run_child(program, {"peer"}, request_for(description.value, trace_path, setup, kind).dump() + "\n",
                       setup.peer_limit));
  return answer_of(row, got, setup);
}

/// Turns a missing key in an answer into a status.
template <typename read>
auto read_answer(const result<document>& answer, const policy_row& row, const read& parse)
    -> result<decltype(parse(std::declval<const json&>()))> {
  if (!answer) return answer.why();
  try {
    return parse(answer->value);
  } catch (const json::exception& e) {
    return about(row, fmt::format("its answer cannot be read: {}", e.what()));
  }
}

}  // namespace

bool is_peer(const std::string& folder, const std::string& name) {
  if (std::find(known_peers.begin(), known_peers.end(), name) != known_peers.end()) return true;
  std::error_code why;
  return name.find('/') == std::string::npos && std::filesystem::exists(file_of(folder, name), why);
}

policy_row row_of(const std::string& folder, const std::string& name) {
  policy_row row;
  row.text = name;
  row.baseline = name;
  row.peer = file_of(folder, name);
  if (const auto description = read_file(row)) row.version = text_at(description->value, "version");
  return row;
}

result<compare_figures> measure_checked(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  return read_answer(ask(recorded, row, setup, "checked"), row, compare_figures_of);
}

result<peer_times> measure_times(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  return read_answer(ask(recorded, row, setup, "times"), row, [](const json& value) {
    return peer_times{number_of(value.at("host_ns_per_op")), number_of(value.at("loop_ns_per_op"))};
  });
}

result<fit_figures> measure_fit(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  return read_answer(ask(recorded, row, setup, "fit"), row, fit_figures_of);
}

}  // namespace gpumem::bench::peers
