// cuDNN's graph interface: descriptors that keep their attributes. Every operation graph has one engine, with one
// configuration, no knobs and no workspace.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "called.hpp"

namespace {

constexpr int success = 0;
constexpr int bad_parameter = 2000;
constexpr int type_backend_descriptor = 15;
// Attributes whose values cuDNN computes, by their documented numbers.
constexpr int engineheur_results = 202;
constexpr int enginecfg_engine = 300;
constexpr int enginecfg_workspace_size = 303;
constexpr int enginecfg_shared_memory_used = 304;
constexpr int execution_plan_workspace_size = 402;
constexpr int execution_plan_json = 405;
constexpr int operationgraph_engine_count = 802;
constexpr int engine_global_index = 1301;

struct value {
  std::int64_t count = 0;
  std::vector<unsigned char> bytes{};
};

struct backend_descriptor {
  std::map<int, value> attributes;
};

std::size_t size_of(int type) {
  switch (type) {
    case 0:  // handle
    case 3:  // int64
    case 5:  // double
    case 6:  // pointer
    case type_backend_descriptor:
    case 26:  // fraction
      return 8;
    case 2:   // bool
    case 24:  // char
      return 1;
    default:  // enumerators, float, int32
      return 4;
  }
}

int answer(std::int64_t* count, std::int64_t is) {
  if (count != nullptr) *count = is;
  return success;
}

}  // namespace

extern "C" {

int cudnnBackendCreateDescriptor(int /*type*/, void** descriptor) {
  if (descriptor == nullptr) return bad_parameter;
  *descriptor = new backend_descriptor;
  return success;
}
int cudnnBackendDestroyDescriptor(void* descriptor) {
  delete static_cast<backend_descriptor*>(descriptor);
  return success;
}
int cudnnBackendInitialize(void* descriptor) { return descriptor == nullptr ? bad_parameter : success; }
int cudnnBackendFinalize(void* descriptor) { return descriptor == nullptr ? bad_parameter : success; }

int cudnnBackendSetAttribute(void* descriptor, int name, int type, std::int64_t count, const void* elements) {
  if (descriptor == nullptr || count < 0 || (count != 0 && elements == nullptr)) return bad_parameter;
  value& kept = static_cast<backend_descriptor*>(descriptor)->attributes[name];
  const auto* const from = static_cast<const unsigned char*>(elements);
  kept.count = count;
  kept.bytes.assign(from, from + static_cast<std::size_t>(count) * size_of(type));
  return success;
}

int cudnnBackendGetAttribute(void* descriptor, int name, int type, std::int64_t wanted, std::int64_t* count,
                             void* elements) {
  if (descriptor == nullptr || wanted < 0) return bad_parameter;
  switch (name) {
    case engineheur_results:  // the caller's descriptors need no change
    case enginecfg_engine:
      return answer(count, 1);
    case enginecfg_workspace_size:
    case enginecfg_shared_memory_used:
    case execution_plan_workspace_size:
    case operationgraph_engine_count:
    case engine_global_index: {
      if (wanted == 0 || elements == nullptr) return answer(count, 1);
      std::memset(elements, 0, size_of(type));
      if (name == operationgraph_engine_count) *static_cast<std::int64_t*>(elements) = 1;
      return answer(count, 1);
    }
    case execution_plan_json: {
      constexpr char empty[] = "{}";
      if (elements != nullptr && wanted >= static_cast<std::int64_t>(sizeof empty)) {
        std::memcpy(elements, empty, sizeof empty);
      }
      return answer(count, sizeof empty);
    }
    default:
      break;
  }
  const auto& all = static_cast<const backend_descriptor*>(descriptor)->attributes;
  const auto found = all.find(name);
  if (found == all.end() || (type == type_backend_descriptor && elements == nullptr)) return answer(count, 0);
  const std::int64_t given = std::min(wanted, found->second.count);
  if (elements != nullptr)
    std::memcpy(elements, found->second.bytes.data(), static_cast<std::size_t>(given) * size_of(type));
  return answer(count, found->second.count);
}

int cudnnBackendExecute(void* handle, void*, void*) { return simcuda_computed_with("cudnnBackendExecute", handle); }

}  // extern "C"
