/// What a simulated card saw of a program: a record in a file that the driver double keeps up to date.
///
/// The file is mapped, so the figures survive a program that crashes or leaves by _exit. One writer, under the driver's
/// lock; readers look after the program's end. Plain values without pointers; `layout` names their arrangement.
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
  std::uint64_t peak_used_bytes = 0;  ///< physical memory, of everything
  std::uint64_t peak_used_ns = 0;     ///< since the driver was initialised
  std::uint64_t live_bytes = 0;       ///< as the program requested it of the driver
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_live_ns = 0;
  std::uint64_t context_bytes = 0;
  std::uint64_t modules_bytes = 0;
  std::uint64_t libraries_bytes = 0;  ///< of cuBLAS, cuDNN and NCCL, for themselves
  std::int64_t number = 0;            ///< of the card on the machine, whatever ordinal it has here
};

/// A request that the card had no room for, or that an allocator in front of the driver refused.
struct refusal_record {
  std::uint64_t at_ns = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t used_bytes = 0;    ///< by everybody
  std::uint64_t others_bytes = 0;  ///< of it, by other processes
  std::int32_t card = 0;
  char function[44] = {};
  char why[384] = {};  ///< of an allocator that refused it in front of the driver; empty: the card had no room
};

/// Bytes that went on while a stream may still use them: handed to another user, or back to the driver.
struct hazard_record {
  std::uint64_t at_ns = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t user = 0;      ///< the stream's handle; 0: a default stream
  std::uint64_t receiver = 0;  ///< the stream that got the bytes
  std::int32_t card = 0;
  char kind[20] = {};      ///< a `hazard_kind`
  char function[48] = {};  ///< the call that found it
  char place[256] = {};    ///< the program's line; empty: none is known
};

/// A line of the program at which the host read untrue values of the card.
struct read_record {
  std::uint64_t times = 0;  ///< of the reads whose line was looked for
  char place[256] = {};
};

struct process_record {
  std::uint64_t layout = 0;  ///< 0: the driver was never initialised
  std::uint64_t pid = 0;
  std::uint64_t began_ns = 0;          ///< CLOCK_REALTIME
  std::uint64_t host_values_read = 0;  ///< copies to the host
  std::uint64_t host_bytes_read = 0;
  std::uint64_t untrue_values_read = 0;  ///< of these copies: a card would have given other bytes
  std::uint64_t clamped_indices = 0;     ///< untrue ones that were changed to what their operation accepts
  std::uint64_t unknown_kernels = 0;     ///< launched where values are computed, by nobody who marks what they write
  std::uint64_t kernels = 0;
  std::uint64_t undefined_uses = 0;  ///< that the documentation leaves undefined, where they do not abort
  std::uint64_t refusals = 0;        ///< all of them; the first `report_refusals` are kept
  std::int32_t cards = 0;
  /// The file that asked for the driver's private tables: a runtime of NVIDIA's own, which does not run here.
  std::int32_t foreign_runtime = 0;
  char runtime[512] = {};
  char undefined[96] = {};          ///< the first of these uses: its function, and what it used
  std::uint64_t unsupported = 0;    ///< requests for memory by functions that the doubles do not have
  char first_unsupported[64] = {};  ///< the first of these functions
  std::uint64_t hazards = 0;        ///< all of them; the first `report_hazards` are kept
  std::uint64_t beyond_bytes = 0;   ///< of managed memory for which the card had no room, in total
  std::uint64_t uses_seen = 0;      ///< uses of a block that the referee was told of
  char unseen[192] = {};            ///< why the referee misses uses of this program; empty: no reason is known
  std::int32_t rank = -1;           ///< of a job, by its launcher or by NCCL; -1: no rank is known
  std::int32_t ranks = 0;           ///< of that job; 0: unknown
  std::int32_t is_joined = 0;       ///< a communicator of NCCL has it with other ranks
  std::int32_t lost_rank = 0;       ///< an operation between ranks failed, since another rank has ended
  std::int32_t exit_status = 0;     ///< where the process has ended by itself
  std::uint64_t ended_ns = 0;       ///< CLOCK_REALTIME; 0: it has not, or was killed
  card_record card[report_cards];
  refusal_record refusal[report_refusals];
  hazard_record hazard[report_hazards];
  read_record read[report_reads];
  char unknown_kernel[160] = {};  ///< the first of `unknown_kernels`
};

}  // namespace gpumem::simcuda
