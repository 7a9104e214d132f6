// A scope in which the CPU's kernels run in place of a card's.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <optional>

namespace gpumem::values {

struct no_warnings final : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

/// The CPU's kernels run below autograd, autocast and Python's modes, and emit no warnings or records.
class host_scope {
 public:
  host_scope()
      : excluded_{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                  c10::DispatchKeySet{c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA,
                                      c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}},
        warnings_{&silent()} {
    if (at::hasCallbacks()) unrecorded_.emplace();  // setting it costs more than a small operation
  }

 private:
  static no_warnings& silent() {
    static no_warnings only;
    return only;
  }
  c10::impl::ExcludeDispatchKeyGuard excluded_;
  c10::WarningUtils::WarningHandlerGuard warnings_;
  std::optional<at::DisableRecordFunctionGuard> unrecorded_;
};

}  // namespace gpumem::values
