#include "metrics.hpp"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <utility>

#include "prometheus_text.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

using nlohmann::json;
using prometheus::MetricType;
using labels = std::vector<prometheus::ClientMetric::Label>;

constexpr std::size_t longest_label = 128;

/// Keeps the families in the order of their first samples.
class family_list {
 public:
  /// Adds a sample. Skips a null `figure` and a second sample with the same labels: Prometheus accepts neither.
  void add(const char* name, const char* help, const json& figure, labels identity, double factor = 1,
           MetricType type = MetricType::Gauge) {
    if (figure.is_null()) return;
    const double value = figure.is_boolean() ? (figure.get<bool>() ? 1.0 : 0.0) : figure.get<double>() * factor;
    const auto same_name = [name](const prometheus::MetricFamily& each) { return each.name == name; };
    auto family = std::find_if(families_.begin(), families_.end(), same_name);
    if (family == families_.end()) family = families_.insert(families_.end(), {name, help, type, {}});
    const auto same_labels = [&](const prometheus::ClientMetric& each) { return each.label == identity; };
    if (std::any_of(family->metric.begin(), family->metric.end(), same_labels)) return;
    prometheus::ClientMetric& sample = family->metric.emplace_back();
    sample.label = std::move(identity);
    (type == MetricType::Counter ? sample.counter.value : sample.gauge.value) = value;
  }
  void count(const char* name, const char* help, const json& figure, labels identity) {
    add(name, help, figure, std::move(identity), 1, MetricType::Counter);
  }
  std::vector<prometheus::MetricFamily> take() { return std::move(families_); }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

std::string label_value(const json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump(), longest_label);
}

labels with(labels extended, std::string name, const json& value) {
  extended.push_back({std::move(name), label_value(value)});
  return extended;
}

std::string name_of(const json& card) { return "GPU " + card["index"].dump(); }

labels identity_of(const json& card) {
  return {{"hw_id", label_value(card["uuid"])}, {"hw_name", name_of(card)}, {"hw_type", "gpu"}};
}

void add_memory(const json& row, const labels& identity, family_list& families) {
  families.add("hw_gpu_memory_limit_bytes", "Memory of the GPU.", row["total_bytes"], identity);
  families.add("hw_gpu_memory_usage_bytes", "Memory in use on the GPU.", row["used_bytes"], identity);
  families.add("gpumem_gpu_memory_free_bytes", "Free memory of the GPU.", row["free_bytes"], identity);
}

void add_processes(const json& card, const labels& identity, family_list& families) {
  for (const json& process : card["processes"]) {
    labels named = with(identity, "process_pid", process["pid"]);
    named = with(std::move(named), "process_owner", process["user"]);
    named = with(std::move(named), "process_executable_name", process["command"]);
    families.add("gpumem_process_memory_usage_bytes", "Memory of a process on a GPU, as NVML reports it.",
                 process["used_bytes"], std::move(named));
  }
}

void add_card(const json& card, family_list& families) {
  constexpr double percent = 0.01;
  constexpr double milli = 0.001;
  const labels identity = identity_of(card);
  labels described = with(identity, "hw_model", card["name"]);
  described = with(std::move(described), "pci_bus_id", card["pci_bus_id"]);
  families.add("gpumem_gpu_info", "A GPU of the machine, and the source of its memory figures; always 1.", 1U,
               with(std::move(described), "memory_source", card.value("memory_source", "nvml")));
  add_memory(card, identity, families);
  families.add("hw_gpu_utilization_ratio", "Fraction of time in which the GPU was busy.", card["busy_percent"],
               with(identity, "hw_gpu_task", "general"), percent);
  families.add("hw_temperature_celsius", "Temperature of the GPU.", card["temperature_c"], identity);
  families.add("hw_power_watts", "Power that the GPU draws.", card["power_mw"], identity, milli);
  families.add("gpumem_gpu_power_limit_watts", "Power limit of the GPU.", card["power_limit_mw"], identity, milli);
  families.add("gpumem_gpu_leases", "Programs that hold a lease on the GPU.", card["leases"], identity);
  families.add("gpumem_gpu_processes", "Processes with a context on the GPU.", card["processes"].size(), identity);
  std::size_t number = 0;
  for (const json& instance : card["instances"]) {
    labels named{{"hw_id", label_value(instance["uuid"])},
                 {"hw_name", name_of(card) + " MIG " + std::to_string(number++)},
                 {"hw_type", "gpu"}};
    add_memory(instance, with(std::move(named), "hw_parent", card["uuid"]), families);
  }
  add_processes(card, identity, families);
}

/// `GPU 3` for the UUID of a card or of an instance of it; empty if it is not listed.
std::string gpu_name(const json& devices, const json& uuid) {
  for (const json& card : devices) {
    if (card["uuid"] == uuid) return name_of(card);
    for (const json& instance : card["instances"]) {
      if (instance["uuid"] == uuid) return name_of(card);
    }
  }
  return "";
}

void add_pool(const json& pool, const labels& identity, family_list& families) {
  families.add("gpumem_pool_limit_bytes", "Limit in force on the pool.", pool["limit_bytes"], identity);
  families.add("gpumem_pool_live_bytes", "Memory of blocks that the program holds.", pool["live_bytes"], identity);
  families.add("gpumem_pool_reserved_bytes", "Memory that the pool took from the driver.", pool["reserved_bytes"],
               identity);
  families.add("gpumem_pool_free_bytes", "Reserved memory that no block uses.", pool["free_bytes"], identity);
  families.add("gpumem_pool_largest_free_bytes", "Largest free block of the pool.", pool["largest_free_bytes"],
               identity);
  families.add("gpumem_pool_external_fragmentation_ratio", "1 - largest free block / free memory of the pool.",
               pool["external_fragmentation"], identity);
  families.count("gpumem_pool_allocations_total", "Requests that the pool served.", pool["allocations"], identity);
  families.count("gpumem_pool_out_of_memory_total", "Requests that the pool refused.", pool["out_of_memory"], identity);
}

void add_served(const json& process, const json& devices, family_list& families) {
  labels identity{{"process_pid", label_value(process["pid"])},
                  {"process_owner", label_value(process["user"])},
                  {"process_executable_name", label_value(process["executable"])},
                  {"group", label_value(process["group"])}};
  families.add("gpumem_process_up", "Whether a process that gpumem serves answered.", process["answered"], identity);
  for (const json& pool : process["devices"]) {
    labels named = with(identity, "hw_id", pool["uuid"]);
    named = with(std::move(named), "hw_name", gpu_name(devices, pool["uuid"]));
    named = with(std::move(named), "pool", pool["ordinal"]);
    named = with(std::move(named), "pool_name", pool["name"]);
    add_pool(pool, with(std::move(named), "policy", pool["policy"]), families);
  }
}

}  // namespace

std::vector<prometheus::MetricFamily> metric_families(const json& shown) {
  family_list families;
  families.add("gpumem_up", "Whether the machine could be looked at.", true, {});
  families.add("gpumem_build_info", "Version of gpumem; always 1.", 1U, {{"version", GPUMEM_VERSION_TEXT}});
  families.add("gpumem_nvml_up", "Whether NVML answered; without it there are no figures of GPUs.",
               shown["problem"].get<std::string>().empty(), {});
  for (const json& card : shown["devices"]) add_card(card, families);
  for (const json& process : shown["served"]) add_served(process, shown["devices"], families);
  return families.take();
}

std::vector<prometheus::MetricFamily> metrics_of_failed_look() {
  family_list families;
  families.add("gpumem_up", "Whether the machine could be looked at.", false, {});
  return families.take();
}

result<std::string> prometheus_text(const json& shown) {
  return prometheus::TextSerializer{}.Serialize(metric_families(shown));
}

}  // namespace gpumem::cli
