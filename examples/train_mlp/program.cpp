#include "program.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace train {
namespace {

nlohmann::json json_of(const figures& all) {
  nlohmann::json out;
  for (const auto& [name, value] : all) {
    if (const auto* const rows = std::get_if<std::vector<figures>>(&value)) {
      out[name] = nlohmann::json::array();
      for (const figures& each : *rows) out[name].push_back(json_of(each));
    } else {
      std::visit(
          [&, &key = name](const auto& plain) {
            if constexpr (!std::is_same_v<std::decay_t<decltype(plain)>, std::vector<figures>>) out[key] = plain;
          },
          value);
    }
  }
  return out;
}

}  // namespace

void write(const figures& all, const options& with) {
  if (with.json_path.empty()) return;
  std::ofstream file{with.json_path};
  file << json_of(all).dump(2) << '\n';
  if (!file.flush()) throw std::invalid_argument{"--json " + with.json_path + ": it cannot be written"};
}

int run_program(const std::string& name, const std::string& purpose, bool takes_allocator, int argc, char** argv,
                const std::function<int(const options&)>& run) {
  const auto failed = [&](const std::exception& why, int exit_status) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), why.what());
    return exit_status;
  };
  options with;
  CLI::App app{purpose, name};
  app.add_option("--device", with.device, "cuda, cuda:N or sim; by default a GPU where there is one");
  if (takes_allocator) {
    app.add_option("--allocator", with.allocator, "gpumem, cuda_malloc or cuda_malloc_async")->capture_default_str();
  }
  app.add_option("--steps", with.steps)->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--seed", with.seed)->capture_default_str();
  app.add_option("--hidden", with.hidden, "width of the hidden layers")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--json", with.json_path, "the figures, as JSON");
  try {
    app.parse(argc, argv);
    return run(with);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::Error& wrong) {
    return failed(wrong, 2);
  } catch (const std::invalid_argument& wrong) {
    return failed(wrong, 2);
  } catch (const std::exception& other) {
    return failed(other, 1);
  }
}

}  // namespace train
