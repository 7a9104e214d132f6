/// A simulated card's record of a program, in a file that the simulated driver keeps up to date.
///
/// The file is mapped, so the figures survive a program that crashes or leaves by _exit. One writer, under the driver's
/// lock; readers read after the program's end. Plain values without pointers; `layout` identifies their arrangement.
#pragma once

#include <cstdint>

namespace gpumem::simcuda {

inline constexpr std::uint64_t report_layout = 0x73696d63'00000006;  // "simc", 6
inline constexpr int report_cards = 16;
inline constexpr int report_refusals = 32;
inline constexpr int report_hazards = 64;
inline constexpr int report_reads = 8;

struct card_record {
  std::uint64_t bytes = 0;
  std::uint64_t peak_used_bytes = 0;  ///< physical memory of all kinds
  std::uint64_t peak_used_ns = 0;     ///< since the driver was initialised
  std::uint64_t live_bytes = 0;       ///< bytes that the program requested of the driver
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_live_ns = 0;
  std::uint64_t context_bytes = 0;
  std::uint64_t modules_bytes = 0;
  std::uint64_t libraries_bytes = 0;  ///< for cuBLAS, cuDNN and NCCL themselves
  std::int64_t number = 0;            ///< the card's number on the machine, whatever its ordinal here
};

/// A request that the card, or an allocator in front of the driver, refused.
struct refusal_record {
  std::uint64_t at_ns = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t used_bytes = 0;    ///< by all processes
  std::uint64_t others_bytes = 0;  ///< by other processes; part of `used_bytes`
  std::int32_t card = 0;
  char function[44] = {};
  char why[384] = {};  ///< the error of an allocator in front of the driver; empty: the card had no room
};

/// Bytes that were handed to another user, or back to the driver, while a stream might still use them.
struct hazard_record {
  std::uint64_t at_ns = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t user = 0;      ///< the stream's handle; 0: a default stream
  std::uint64_t receiver = 0;  ///< the stream that got the bytes
  std::int32_t card = 0;
  char kind[20] = {};      ///< a `hazard_kind`
  char function[48] = {};  ///< the call in which the referee found it
  char place[256] = {};    ///< the program's line; empty: unknown
};

/// A line of the program at which the host read untrue values of the card.
struct read_record {
  std::uint64_t times = 0;  ///< reads at this line, of those that were located
  char place[256] = {};
};

struct process_record {
  std::uint64_t layout = 0;  ///< 0: the driver was never initialised
  std::uint64_t pid = 0;
  std::uint64_t began_ns = 0;          ///< CLOCK_REALTIME
  std::uint64_t host_values_read = 0;  ///< copies to the host
  std::uint64_t host_bytes_read = 0;
  std::uint64_t untrue_values_read = 0;  ///< those of `host_values_read` whose bytes differ from a card's
  std::uint64_t clamped_indices = 0;     ///< untrue indices that were changed to the range of their operation
  std::uint64_t unknown_kernels = 0;     ///< kernels, where values are computed, whose results have no marks
  std::uint64_t kernels = 0;
  std::uint64_t undefined_uses = 0;  ///< uses that the documentation leaves undefined, where they do not abort
  std::uint64_t refusals = 0;        ///< all; the first `report_refusals` are kept
  std::int32_t cards = 0;
  /// The file that requested the driver's private tables: NVIDIA's own runtime, which does not run here.
  std::int32_t foreign_runtime = 0;
  char runtime[512] = {};
  char undefined[96] = {};          ///< the first such use: its function and the object
  std::uint64_t unsupported = 0;    ///< requests for memory by functions that the simulated libraries lack
  char first_unsupported[64] = {};  ///< the first such function
  std::uint64_t hazards = 0;        ///< all; the first `report_hazards` are kept
  std::uint64_t beyond_bytes = 0;   ///< managed memory for which the card had no room, in total
  std::uint64_t uses_seen = 0;      ///< uses of a block that were reported to the referee
  char unseen[192] = {};            ///< why the referee misses uses of this program; empty: no reason is known
  std::int32_t rank = -1;           ///< in a job, by its launcher or by NCCL; -1: unknown
  std::int32_t ranks = 0;           ///< size of that job; 0: unknown
  std::int32_t is_joined = 0;       ///< a NCCL communicator connects this rank with others
  std::int32_t lost_rank = 0;       ///< an operation between ranks failed because another rank had ended
  std::int32_t exit_status = 0;     ///< valid if the process has ended by itself
  std::uint64_t ended_ns = 0;       ///< CLOCK_REALTIME; 0: still running, or killed
  card_record card[report_cards];
  refusal_record refusal[report_refusals];
  hazard_record hazard[report_hazards];
  read_record read[report_reads];
  char unknown_kernel[160] = {};  ///< the first of `unknown_kernels`
};

}  // namespace gpumem::simcuda
