// Reports events of the driver's functions to the run's record (run_record.hpp). The world's lock must be held.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpumem::simcuda {

struct gpu;
struct hazard_record;

/// At cuInit: creates the program's file, PID.simcuda, in the folder that SIMCUDA_REPORT names. The next program that
/// the process executes has PID.1.simcuda.
void open_report();
/// Call after the program allocated or freed `bytes`.
void note_taken(gpu& device, std::uint64_t bytes);
void note_given_back(gpu& device, std::uint64_t bytes);
/// Managed memory that the card had no room for.
void note_beyond(std::uint64_t bytes);
/// Memory that the program did not request itself.
enum class charge { context, module, library };
void note_charge(gpu& device, charge kind, std::uint64_t bytes);
/// `why` is of an allocator in front of the driver; empty: the card has no room.
void note_refused(const gpu& device, std::string_view function, std::uint64_t bytes, std::string_view why = {});
/// The program requested memory by a function that the doubles do not have.
void note_unsupported(std::string_view function);
/// A copy to the host; `is_true`: a card would give the same bytes.
void note_host_read(std::uint64_t bytes, bool is_true);
/// Untrue indices that were changed to what their operation accepts.
void note_clamped(std::uint64_t indices);
/// A kernel that nobody computes. Keeps the first name.
void note_unknown_kernel(std::string_view name);
/// The largest job counts that the process is a rank of.
void note_rank(int rank, int ranks);
/// An operation between ranks failed, since another rank has ended.
void note_lost_rank();
/// The process ends with that status, if it is the one of the record.
void note_exit(int status);
void note_kernel();
/// The referee was told of a use of a block.
void note_use();
/// The referee does not see the uses of this program. Keeps the first reason.
void note_unseen(std::string_view why);
void note_undefined(std::string_view description);
/// What the devices' referees have found since the last call (`world_config::referee`); with its place where the
/// calling thread is in Python (python_line.hpp), unless the caller says it itself.
void note_hazards(bool place);
/// The kept hazards without a place were found here.
void place_hazards(std::string_view place);
/// Of the `index`-th one kept: what, where. Null: there is none.
const hazard_record* noted_hazard(std::uint64_t index);
/// A caller asked for tables that no documentation has; `caller` is an address in its code.
void note_foreign_runtime(const void* caller);

}  // namespace gpumem::simcuda
