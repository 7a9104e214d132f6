// Adds events of the driver's functions to the run's record (run_record.hpp). Requires the driver state's lock.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpumem::simcuda {

struct gpu;
struct hazard_record;

/// Call at cuInit. Creates the program's file, PID.simcuda, in the folder SIMCUDA_REPORT. The next program that the
/// process executes gets PID.1.simcuda.
void open_report();
/// Call after the program allocated or freed `bytes`.
void note_taken(gpu& device, std::uint64_t bytes);
void note_given_back(gpu& device, std::uint64_t bytes);
/// Call when managed memory does not fit on the card.
void note_beyond(std::uint64_t bytes);
/// Adds memory that the program did not request itself.
enum class charge { context, module, library };
void note_charge(gpu& device, charge kind, std::uint64_t bytes);
/// `why`: the error of an allocator in front of the driver; empty: the card has no room.
void note_refused(const gpu& device, std::string_view function, std::uint64_t bytes, std::string_view why = {});
/// Call when the program requests memory by a function that the simulated libraries lack.
void note_unsupported(std::string_view function);
/// Call for a copy to the host. `is_true`: a card would give the same bytes.
void note_host_read(std::uint64_t bytes, bool is_true);
/// Counts untrue indices that were changed to the range of their operation.
void note_clamped(std::uint64_t indices);
/// Counts a kernel whose results are not computed. Keeps the first name.
void note_unknown_kernel(std::string_view name);
/// Sets the process's rank in a job; the largest job counts.
void note_rank(int rank, int ranks);
/// Call when an operation between ranks failed because another rank had ended.
void note_lost_rank();
/// Sets the exit status, if this is the process of the record.
void note_exit(int status);
void note_kernel();
/// Call when a use of a block was reported to the referee.
void note_use();
/// Call if the referee cannot see this program's uses. Keeps the first reason.
void note_unseen(std::string_view why);
void note_undefined(std::string_view description);
/// Adds the hazards that the devices' referees found since the last call (`world_config::referee`). With `place`, adds
/// the calling thread's line of Python (python_line.hpp); pass false if the caller adds the place itself.
void note_hazards(bool place);
/// Sets the place of the kept hazards that have none.
void place_hazards(std::string_view place);
/// Returns the `index`-th kept hazard; null if there is none.
const hazard_record* noted_hazard(std::uint64_t index);
/// Call when the program requests undocumented tables; `caller` is an address in its code.
void note_foreign_runtime(const void* caller);

}  // namespace gpumem::simcuda
