#include "convert.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "binary_trace.hpp"
#include "fail.hpp"
#include "text.hpp"
#include "trace.hpp"

namespace gpumem::cli {
namespace {

struct timed_read {
  result<bench::trace> recorded{status{errc::invalid_argument, "not read"}};
  double seconds = 0;  ///< processor time of the fastest of several readings
};

timed_read read_timed(const std::string& path, int times) {
  timed_read timed;
  for (int k = 0; k < times; ++k) {
    const std::clock_t began = std::clock();
    timed.recorded = bench::load_trace(path);
    const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
    timed.seconds = k == 0 ? seconds : std::min(timed.seconds, seconds);
  }
  return timed;
}

bool same(const bench::trace& lhs, const bench::trace& rhs) {
  const auto same_op = [](const bench::trace_op& left, const bench::trace_op& right) {
    // CSV stores microseconds.
    return left.time_ns / 1000 == right.time_ns / 1000 && left.bytes == right.bytes && left.slot == right.slot &&
           left.stream == right.stream && left.kind == right.kind;
  };
  return std::equal(lhs.ops.begin(), lhs.ops.end(), rhs.ops.begin(), rhs.ops.end(), same_op);
}

}  // namespace

void add_convert_command(CLI::App& app, convert_options& options) {
  CLI::App* const convert = app.add_subcommand("convert", "converts a recording: .csv, .csv.gz or .gmtrace");
  convert->footer("Example: gpumem convert run.csv.gz -o run.gmtrace");
  convert->add_option("in", options.input, "a recording: RMM CSV, plain or gzip, or a compact trace")->type_name("IN");
  convert->add_option("-o,--output", options.output, "ends in .gmtrace (compact), .csv or .csv.gz")->type_name("OUT");
  convert->add_flag("--json", options.json, "print sizes and reading times of both files");
}

int convert(const convert_options& options) {
  if (options.input.empty() || options.output.empty()) return fail(2, "convert: expected gpumem convert IN -o OUT");
  const timed_read input = read_timed(options.input, options.json ? 3 : 1);
  if (!input.recorded) return fail(1, input.recorded.why().message());
  const status written = bench::write_trace(options.output, *input.recorded);
  if (!written.ok()) return fail(1, written.message());
  const timed_read output = read_timed(options.output, options.json ? 3 : 1);
  if (!output.recorded) return fail(1, output.recorded.why().message());
  if (!same(*input.recorded, *output.recorded))
    return fail(1, options.output + ": read back, it differs from what was written; expected a working disk");
  if (options.json) {
    const auto figures = [](const std::string& path, const timed_read& file) {
      return nlohmann::ordered_json{{"bytes", std::filesystem::file_size(path)}, {"read_s", file.seconds}};
    };
    const nlohmann::ordered_json all{{"schema", 1},
                                     {"ops", input.recorded->ops.size()},
                                     {"input", figures(options.input, input)},
                                     {"output", figures(options.output, output)}};
    fmt::print("{}\n", all.dump());
  }
  return 0;
}

}  // namespace gpumem::cli
