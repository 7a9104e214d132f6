// The process writes into an unnamed file, which this program then converts. So neither side holds a whole dump in
// memory, and a failed dump leaves no file behind.
#include "dump.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "job_rank.hpp"
#include "logical_devices.hpp"
#include "print_error.hpp"
#include "recording_file.hpp"
#include "served_figures.hpp"
#include "snapshot_file.hpp"
#include "text.hpp"
#include "trace_row.hpp"
#include "written_file.hpp"

namespace gpumem::cli {
namespace {

constexpr std::string_view snapshot_suffix = ".pickle";

/// Opens an unnamed file, on the output's file system if possible.
owned_fd open_scratch(const std::string& output) {
  const std::filesystem::path folder = std::filesystem::path{output}.parent_path();
  owned_fd file{::open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)};
  if (file.get() >= 0) return file;
  return owned_fd{::memfd_create("gpumem-dump", MFD_CLOEXEC)};
}

status not_written(const std::string& path, std::string_view why) {
  return {errc::bad_setting, fmt::format("--output {}: cannot be written: {}; expected a file in a folder that exists",
                                         printable(path, PATH_MAX), why)};
}

/// Reads the lines of a file from its beginning.
class line_reader {
 public:
  explicit line_reader(owned_fd file) : file_{::fdopen(file.get(), "r"), &std::fclose} {
    if (file_ == nullptr) return;
    static_cast<void>(file.release());
    std::rewind(file_.get());
  }
  ~line_reader() { std::free(line_); }  // NOLINT(cppcoreguidelines-no-malloc): getline's
  line_reader& operator=(line_reader&&) = delete;
  /// The next line with its newline; nothing at the end of the file.
  std::optional<std::string_view> next() {
    const ssize_t length = file_ != nullptr ? ::getline(&line_, &room_, file_.get()) : -1;
    if (length < 0) return std::nullopt;
    return std::string_view{line_, static_cast<std::size_t>(length)};
  }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  char* line_ = nullptr;
  std::size_t room_ = 0;
};

/// Parses `00:00:01:500000` into microseconds.
std::optional<std::uint64_t> time_of(std::string_view text) {
  std::uint64_t us = 0;
  for (const std::uint64_t factor : {60U, 60U, 1'000'000U, 0U}) {
    const std::size_t colon = std::min(text.find(':'), text.size());
    const std::optional<std::uint64_t> part = whole_number<std::uint64_t>(text.substr(0, colon));
    if (!part || (factor != 0) != (colon != text.size())) return std::nullopt;
    us = factor != 0 ? (us + *part) * factor : us + *part;
    text.remove_prefix(std::min(colon + 1, text.size()));
  }
  return us;
}

/// A row of a dump. `thread` 0: the block was live before the first event.
struct read_row {
  std::uint64_t thread = 0;
  dumped_row row;
};

std::optional<read_row> row_of(std::string_view line) {
  if (!line.ends_with('\n')) return std::nullopt;
  line.remove_suffix(1);
  std::array<std::string_view, 6> fields;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::size_t comma = i + 1 < fields.size() ? line.find(',') : line.size();
    if (comma == std::string_view::npos) return std::nullopt;
    fields[i] = line.substr(0, comma);
    line.remove_prefix(std::min(comma + 1, line.size()));
  }
  const auto& [thread, time, action, pointer, bytes, stream] = fields;
  read_row parsed;
  std::optional<std::uint64_t> location;
  if (action == "allocate failure") {
    parsed.row.action = dumped_action::refused;
    location = whole_number<std::uint64_t>(pointer.substr(pointer.find('@') + 1)).value_or(0);
  } else if (pointer.starts_with("0x") && (action == "allocate" || action == "free")) {
    parsed.row.action = action == "free" ? dumped_action::freed : dumped_action::allocated;
    location = whole_number<std::uint64_t>(pointer.substr(2), 16);
  }
  const auto numbers = std::array{whole_number<std::uint64_t>(thread), time_of(time), location,
                                  whole_number<std::uint64_t>(bytes), whole_number<std::uint64_t>(stream)};
  for (const auto& each : numbers) {
    if (!each) return std::nullopt;
  }
  parsed.thread = *numbers[0];
  parsed.row.time_us = *numbers[1];
  parsed.row.address = *numbers[2];
  parsed.row.bytes = *numbers[3];
  parsed.row.stream = *numbers[4];
  return parsed;
}

status write_all(const std::string& path, std::string_view bytes, bool compressed = false) {
  result<owned_fd> file = open_written_file(path, false);
  if (!file) return not_written(path, file.why().message());
  recording_file recording;
  recording.open(file->get(), compressed);
  status written = recording.write(bytes);
  if (written) written = recording.flush();
  return written ? status{} : not_written(path, written.message());
}

/// Writes each pool's trace to a file of its own.
status write_traces(line_reader& lines, const std::string& output) {
  owned_fd file;
  std::unique_ptr<recording_file> recording;
  std::string path;
  int pools = 0;
  const auto end_file = [&]() -> status {
    const status flushed = recording != nullptr ? recording->flush() : status{};
    recording.reset();
    return flushed ? status{} : not_written(path, flushed.message());
  };
  while (const auto line = lines.next()) {
    if (*line == trace_header) {
      if (status ended = end_file(); !ended) return ended;
      path = path_of_pool(output, pools++);
      result<owned_fd> opened = open_written_file(path, false);
      if (!opened) return not_written(path, opened.why().message());
      file = *std::move(opened);
      recording = std::make_unique<recording_file>();
      recording->open(file.get(), path.ends_with(".gz"));
    }
    if (recording == nullptr)
      return {errc::corrupt, "the dump does not begin with the names of its columns; try again"};
    if (const status written = recording->write(*line); !written) return not_written(path, written.message());
  }
  return end_file();
}

status write_snapshot(line_reader& lines, const std::string& output) {
  std::vector<dumped_pool> pools;
  while (const auto line = lines.next()) {
    if (*line == trace_header) {
      pools.emplace_back();
      continue;
    }
    const std::optional<read_row> read = row_of(*line);
    if (!read || pools.empty()) {
      return {errc::corrupt, fmt::format("the dump has a row that is none: {}", printable(*line, 200))};
    }
    (read->thread == 0 ? pools.back().live_before : pools.back().events).push_back(read->row);
  }
  return write_all(output, snapshot_of(pools));
}

status print_lines(line_reader& lines) {
  while (const auto line = lines.next()) fmt::print("{}", *line);  // main reports write errors
  return {};
}

}  // namespace

void add_dump_command(CLI::App& app, dump_options& options) {
  CLI::App* const made = app.add_subcommand("dump", "what a process that gpumem serves keeps of its latest events");
  made->add_option("pid", options.pid, "a process that gpumem top shows as served")->type_name("PID")->required();
  made->add_option(
          "-o,--output", options.output,
          "the file to write; of further logical devices run.1.csv and so on [default: gpumem-PID.csv or .pickle]")
      ->type_name("FILE");
  made->add_option("--format", options.format,
                   "trace: RMM's CSV, also .gz; snapshot: PyTorch's, for torch.cuda._memory_viz; events: memory taken, "
                   "given back and refused, as text [default: by the name of FILE, else trace]")
      ->type_name("F")
      ->check(CLI::IsMember({"trace", "snapshot", "events"}));
  made->footer(
      "Traces and snapshots are of programs started with GPUMEM_HISTORY=100000; every program keeps its events.\n"
      "Example: gpumem dump 4711 --output train.pickle");
}

result<std::string> write_dump_of_process(const dump_options& options) {
  const bool by_name = options.output.ends_with(snapshot_suffix);
  const std::string format = !options.format.empty() ? options.format : by_name ? "snapshot" : "trace";
  std::string output = options.output;
  if (output.empty()) {
    output = format == "events" ? "-"
                                : fmt::format("gpumem-{}{}", options.pid, format == "trace" ? ".csv" : snapshot_suffix);
  }
  owned_fd scratch = open_scratch(output);
  if (scratch.get() < 0) return not_written(output, std::strerror(errno));
  const std::string_view contents = format == "events" ? "events" : "trace";
  if (status dumped = dump_served(options.pid, contents, scratch.get()); !dumped) return dumped;
  line_reader lines{std::move(scratch)};
  status written;
  if (format == "events" && output == "-") {
    written = print_lines(lines);
  } else if (format == "events") {
    std::string text;
    while (const auto line = lines.next()) text += *line;
    written = write_all(output, text);
  } else {
    written = format == "trace" ? write_traces(lines, output) : write_snapshot(lines, output);
  }
  if (!written) return written;
  return output;
}

int dump(const dump_options& options) {
  const result<std::string> written = write_dump_of_process(options);
  if (written) {
    if (*written != "-") fmt::print("{}\n", *written);
    return 0;
  }
  print_error("gpumem: {}{}\n", rank_prefix(), printable(written.why().message(), 8192));
  return written.code() == errc::invalid_argument ? 2 : 1;
}

}  // namespace gpumem::cli
