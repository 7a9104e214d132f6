// What the driver's functions tell the report (report.hpp). All under the world's lock.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpumem::simcuda {

struct gpu;

/// At cuInit: SIMCUDA_REPORT names a folder, in which the process gets a file by its id.
void open_report();
/// After the program took or gave back `bytes` of what it asks the driver for.
void note_taken(gpu& on, std::uint64_t bytes);
void note_given_back(gpu& on, std::uint64_t bytes);
/// Memory that is not the program's own request.
enum class charge { context, module, library };
void note_charge(gpu& on, charge what, std::uint64_t bytes);
void note_refused(gpu& on, std::string_view function, std::uint64_t bytes);
void note_host_read(std::uint64_t bytes);
void note_kernel();
void note_undefined(std::string_view what);
/// A caller asked for tables that no documentation has; `caller` is an address in its code.
void note_foreign_runtime(const void* caller);

}  // namespace gpumem::simcuda
