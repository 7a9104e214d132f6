// cuDNN's graph interface: descriptors that keep their attributes. Every operation graph has one engine with one
// configuration and no knobs.
//
// Attention needs the workspace that cuDNN 9.19 takes on an H100: 256 bytes, none for queries of a single token, and
// for the backward pass also the gradients of keys and values for each head of the queries, if fewer heads have keys.
// Convolutions follow SIMCUDA_CUDNN_WORKSPACE:
// - converted: a forward convolution of 16-bit channels-first tensors needs its input, filter and output once more, in
//   tensor-core order, which matches published peaks (docs/simulate.md);
// - otherwise they need none.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "called.hpp"

namespace {

constexpr int success = 0;
constexpr int bad_parameter = 2000;
constexpr int type_backend_descriptor = 15;
// Attributes that cuDNN computes, by their documented numbers.
constexpr int engineheur_operation_graph = 201;
constexpr int engineheur_results = 202;
constexpr int enginecfg_engine = 300;
constexpr int enginecfg_workspace_size = 303;
constexpr int enginecfg_shared_memory_used = 304;
constexpr int execution_plan_workspace_size = 402;
constexpr int execution_plan_json = 405;
constexpr int operationgraph_engine_count = 802;
constexpr int engine_global_index = 1301;
// Attributes that lead from a plan to its tensors.
constexpr int execution_plan_engine_config = 401;
constexpr int convolution_forward_filter = 703;
constexpr int convolution_forward_output = 705;
constexpr int reduction_input = 1610;
constexpr int reduction_output = 1611;
constexpr int attention_queries = 2800;
constexpr int operationgraph_operations = 801;
constexpr int tensor_data_type = 901;
constexpr int tensor_dimensions = 902;
constexpr int tensor_strides = 903;
constexpr int engine_operation_graph = 1300;

// Types of descriptors.
constexpr int matmul = 19;
constexpr int reduction = 22;
constexpr int attention_forward = 41;
constexpr int attention_backward = 43;

/// A tensor as its descriptor had it: the descriptor may be destroyed before the operation graph is made.
struct tensor {
  int type = -1;
  std::vector<std::int64_t> sizes{}, strides{};
};

struct value {
  std::int64_t count = 0;
  std::vector<unsigned char> bytes{};
};

struct backend_descriptor {
  int type = -1;
  std::map<int, value> attributes;
  std::map<int, tensor> tensors;     ///< of an operation, by attribute
  std::int64_t workspace_bytes = 0;  ///< of the descriptor's operation graph
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

template <typename Element>
std::vector<Element> elements_of(const backend_descriptor& descriptor, int name) {
  const auto found = descriptor.attributes.find(name);
  if (found == descriptor.attributes.end()) return {};
  std::vector<Element> elements(found->second.bytes.size() / sizeof(Element));
  std::memcpy(elements.data(), found->second.bytes.data(), elements.size() * sizeof(Element));
  return elements;
}

/// Returns the descriptor that an attribute names; null if it names none.
const backend_descriptor* descriptor_in(const backend_descriptor& descriptor, int name) {
  const auto all = elements_of<const backend_descriptor*>(descriptor, name);
  return all.empty() ? nullptr : all.front();
}

tensor tensor_of(const backend_descriptor& descriptor) {
  const auto type = elements_of<int>(descriptor, tensor_data_type);
  return {type.empty() ? -1 : type[0], elements_of<std::int64_t>(descriptor, tensor_dimensions),
          elements_of<std::int64_t>(descriptor, tensor_strides)};
}

bool has_16_bits(const tensor& given) {
  constexpr int half = 2;
  constexpr int bfloat16 = 9;
  return given.type == half || given.type == bfloat16;
}

std::int64_t product_of(const std::vector<std::int64_t>& sizes, std::size_t first) {
  std::int64_t product = 1;
  for (std::size_t i = first; i < sizes.size(); ++i) product *= sizes[i];
  return product;
}

/// Returns the tensor's bytes if it is 16-bit, its channels are not innermost and they fill whole tensor-core units;
/// else 0.
std::int64_t bytes_to_convert(const tensor& given) {
  if (!has_16_bits(given) || given.sizes.size() < 4 || given.strides.size() != given.sizes.size()) return 0;
  return given.strides[1] == 1 || given.sizes[1] % 8 != 0 ? 0 : 2 * product_of(given.sizes, 0);
}

/// Returns the bytes of a forward convolution's tensors in tensor-core order; 0 if one of them needs no conversion.
std::int64_t converted_workspace(const backend_descriptor& operation) {
  std::int64_t bytes = 0;
  for (int name = convolution_forward_filter; name <= convolution_forward_output; ++name) {
    const auto found = operation.tensors.find(name);
    const std::int64_t converted = found == operation.tensors.end() ? 0 : bytes_to_convert(found->second);
    if (converted == 0) return 0;
    bytes += converted;
  }
  return bytes;
}

/// Returns the workspace of the operations if they are an attention's; else 0.
std::int64_t attention_workspace(const std::vector<const backend_descriptor*>& operations) {
  int products = 0;
  std::int64_t for_each_head = 0;
  for (const backend_descriptor* each : operations) {
    if (each->type == attention_forward || each->type == attention_backward) {
      const auto queries = each->tensors.find(attention_queries);
      const bool one_token =
          queries != each->tensors.end() && queries->second.sizes.size() == 4 && queries->second.sizes[2] == 1;
      if (!one_token) products += 2;
    }
    if (each->type == matmul) ++products;
    const auto whole = each->tensors.find(reduction_input);
    const auto reduced = each->tensors.find(reduction_output);
    if (each->type != reduction || whole == each->tensors.end() || reduced == each->tensors.end()) continue;
    const auto& sizes = whole->second.sizes;
    const auto& less = reduced->second.sizes;
    if (sizes.size() == 4 && less.size() == 4 && sizes[1] != less[1]) {
      for_each_head += (has_16_bits(whole->second) ? 2 : 4) * product_of(sizes, 0);
    }
  }
  return products >= 2 ? 256 + for_each_head : 0;
}

/// Returns the workspace of an operation graph.
std::int64_t workspace_of(const std::vector<const backend_descriptor*>& operations) {
  std::int64_t bytes = attention_workspace(operations);
  const char* const how = std::getenv("SIMCUDA_CUDNN_WORKSPACE");
  if (how == nullptr || std::strcmp(how, "converted") != 0) return bytes;
  for (const backend_descriptor* each : operations) {
    bytes += converted_workspace(*each);
  }
  return bytes;
}

/// Copies the sizes from the descriptors that the attribute names, because these may be destroyed before use.
void follow(backend_descriptor& descriptor, int name, int type) {
  if (type == type_backend_descriptor &&
      (name == reduction_input || name == reduction_output || name == attention_queries ||
       (name >= convolution_forward_filter && name <= convolution_forward_output))) {
    if (const backend_descriptor* const source = descriptor_in(descriptor, name); source != nullptr) {
      descriptor.tensors[name] = tensor_of(*source);
    }
  }
  if (name == operationgraph_operations) {
    descriptor.workspace_bytes = workspace_of(elements_of<const backend_descriptor*>(descriptor, name));
  } else if (name == engineheur_operation_graph || name == engine_operation_graph || name == enginecfg_engine ||
             name == execution_plan_engine_config) {
    if (const backend_descriptor* const source = descriptor_in(descriptor, name); source != nullptr) {
      descriptor.workspace_bytes = source->workspace_bytes;
    }
  }
}

int answer(std::int64_t* count, std::int64_t total) {
  if (count != nullptr) *count = total;
  return success;
}

}  // namespace

extern "C" {

int cudnnBackendCreateDescriptor(int type, void** descriptor) {
  if (descriptor == nullptr) return bad_parameter;
  auto* const made = new backend_descriptor;
  made->type = type;
  *descriptor = made;
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
  const auto* const source = static_cast<const unsigned char*>(elements);
  kept.count = count;
  kept.bytes.assign(source, source + static_cast<std::size_t>(count) * size_of(type));
  follow(*static_cast<backend_descriptor*>(descriptor), name, type);
  return success;
}

int cudnnBackendGetAttribute(void* descriptor, int name, int type, std::int64_t wanted, std::int64_t* count,
                             void* elements) {
  if (descriptor == nullptr || wanted < 0) return bad_parameter;
  const auto& backend = *static_cast<const backend_descriptor*>(descriptor);
  switch (name) {
    case engineheur_results:  // both fill in the caller's descriptor with a configuration
    case execution_plan_engine_config:
      if (wanted > 0 && elements != nullptr) {
        auto* const made = *static_cast<backend_descriptor**>(elements);
        if (made != nullptr) made->workspace_bytes = backend.workspace_bytes;
      }
      return answer(count, 1);
    case enginecfg_engine:
      return answer(count, 1);
    case enginecfg_workspace_size:
    case execution_plan_workspace_size:
      if (wanted > 0 && elements != nullptr)
        std::memcpy(elements, &backend.workspace_bytes, sizeof backend.workspace_bytes);
      return answer(count, 1);
    case enginecfg_shared_memory_used:
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
  const auto found = backend.attributes.find(name);
  if (found == backend.attributes.end() || (type == type_backend_descriptor && elements == nullptr))
    return answer(count, 0);
  const std::int64_t given = std::min(wanted, found->second.count);
  if (elements != nullptr)
    std::memcpy(elements, found->second.bytes.data(), static_cast<std::size_t>(given) * size_of(type));
  return answer(count, found->second.count);
}

int cudnnBackendExecute(void* handle, void*, void*) { return simcuda_computed_with("cudnnBackendExecute", handle); }

}  // extern "C"
