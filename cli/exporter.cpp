// prometheus-cpp serves HTTP on its own threads. Each look at the machine runs in a separate process
// (look_process.hpp).
#include "exporter.hpp"

#include <fmt/format.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <csignal>
#include <exception>
#include <memory>
#include <mutex>

#include "fail.hpp"
#include "listen_address.hpp"
#include "look_process.hpp"
#include "metrics.hpp"
#include "print_error.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

/// Looks at the machine for each scrape. Concurrent scrapes take turns.
class machine_metrics final : public prometheus::Collectable {
 public:
  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    const std::lock_guard lock{mutex_};
    std::string problem;
    try {
      nlohmann::json shown;
      const status looked = process_.run(shown);
      if (looked) {
        failing_ = false;
        return metric_families(shown);
      }
      problem = looked.message();
    } catch (const std::exception& e) {  // the server's threads have no handler
      problem = e.what();
    }
    if (!failing_ && !process_.stopped()) print_error("gpumem: exporter: {}\n", printable(problem, 8192));
    failing_ = true;
    return metrics_of_failed_look();
  }
  void stop() noexcept { process_.stop(); }

 private:
  mutable std::mutex mutex_;
  mutable look_process process_;
  mutable bool failing_ = false;  ///< the last look failed, and a line said so
};

/// Starts the library's server. Null if it cannot listen.
std::unique_ptr<prometheus::Exposer> serve(const std::string& address) {
  // A client that sends nothing must not occupy a thread for ever.
  const std::vector<std::string> server_options{"listening_ports",    address, "num_threads", "4",
                                                "request_timeout_ms", "5000"};
  try {
    return std::make_unique<prometheus::Exposer>(server_options);
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace

int run_exporter(const exporter_options& chosen) {
  const result<std::string> address = listen_address(chosen.listen);
  if (!address) return fail(2, "exporter: " + address.why().message());
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM}) ::sigaddset(&ends, number);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before the server's threads begin, so that sigwait gets them
  std::signal(SIGPIPE, SIG_IGN);
  const auto metrics = std::make_shared<machine_metrics>();
  const std::unique_ptr<prometheus::Exposer> server = serve(*address);
  if (server == nullptr) {
    return fail(
        2, fmt::format("exporter: --listen {}: the server cannot listen there; expected a free port of this machine",
                       printable(chosen.listen)));
  }
  server->RegisterCollectable(metrics);
  const std::string host = address->substr(0, address->rfind(':'));
  for (const int port : server->GetListeningPorts()) {
    print_error("gpumem: exporter: serving http://{}:{}/metrics\n", host, port);
  }
  int number = 0;
  while (::sigwait(&ends, &number) != 0) {
  }
  metrics->stop();
  return 0;
}

}  // namespace gpumem::cli
