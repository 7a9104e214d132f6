#include "nccl_operations.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "nccl_card.hpp"

namespace gpumem::simcuda {
namespace {

using lane = rank_exchange::lane;

constexpr std::uint64_t operation_ns = 10'000;  // time that an operation occupies its stream

struct split_message {
  std::int32_t color = 0;
  std::int32_t key = 0;
  exchange_id id;
};

/// A call in progress, with a copy of its values, because the result may overwrite them.
struct started_call {
  nccl_call call;
  std::vector<std::byte> values{};
  bool keeps_values = false;
  bool is_true = true;
  bool finished = false;

  [[nodiscard]] std::size_t bytes() const {
    return call.operation == nccl_operation::split ? sizeof(split_message) : call.count * value_bytes(call.type);
  }
  [[nodiscard]] bool is_root() const { return call.comm->rank == call.root; }
};

struct group_state {
  int depth = 0;
  std::vector<nccl_call> calls;
  std::vector<communicator*> joining;
};
thread_local group_state group;

std::size_t rank_count(const nccl_call& call) { return static_cast<std::size_t>(call.comm->ranks); }
std::size_t own_rank(const nccl_call& call) { return static_cast<std::size_t>(call.comm->rank); }

/// Returns how many chunks of `bytes()` the rank contributes.
std::size_t source_chunks(const started_call& started) {
  switch (started.call.operation) {
    case nccl_operation::reduce_scatter:
    case nccl_operation::all_to_all:
      return rank_count(started.call);
    case nccl_operation::broadcast:
      return started.is_root() ? 1 : 0;
    case nccl_operation::scatter:
      return started.is_root() ? rank_count(started.call) : 0;
    case nccl_operation::receive:
      return 0;
    default:
      return 1;
  }
}

/// Returns how many chunks the rank receives.
std::size_t target_chunks(const started_call& started) {
  switch (started.call.operation) {
    case nccl_operation::all_gather:
    case nccl_operation::all_to_all:
      return rank_count(started.call);
    case nccl_operation::reduce:
      return started.is_root() ? 1 : 0;
    case nccl_operation::gather:
      return started.is_root() ? rank_count(started.call) : 0;
    case nccl_operation::send:
    case nccl_operation::split:
      return 0;
    default:
      return 1;
  }
}

message_head head_of(const started_call& started) {
  const nccl_call& call = started.call;
  const bool between_two = call.operation == nccl_operation::send || call.operation == nccl_operation::receive;
  const bool reduces = call.operation == nccl_operation::all_reduce || call.operation == nccl_operation::reduce ||
                       call.operation == nccl_operation::reduce_scatter;
  return {.operation = static_cast<std::uint32_t>(between_two ? nccl_operation::send : call.operation),
          .type = static_cast<std::uint32_t>(call.type),
          // Created reductions have a different id on each rank.
          .reduction = static_cast<std::uint32_t>(reduces ? std::min(call.reduction_id, first_created_reduction) : 0),
          .root = static_cast<std::uint32_t>(between_two ? 0 : call.root),
          .is_true = started.is_true ? 1U : 0U,
          .bytes = started.bytes(),
          .kept = started.keeps_values ? started.bytes() : 0};
}

const char* name_of_operation(std::uint32_t operation) {
  constexpr const char* names[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast",
                                   "ncclReduce",    "ncclAlltoAll",  "ncclGather",        "ncclScatter",
                                   "ncclSend",      "ncclRecv",      "ncclCommSplit"};
  return operation < std::size(names) ? names[operation] : "an unknown operation";
}

std::string described(const message_head& head) {
  return std::string{name_of_operation(head.operation)} + " of " + std::to_string(head.bytes) + " bytes (type " +
         std::to_string(head.type) + ", reduction " + std::to_string(head.reduction) + ", root " +
         std::to_string(head.root) + ")";
}

// --- one call ---

/// Occupies the call's stream.
void occupy_stream(const started_call& started) {
  const auto use = [&](const void* address, std::size_t chunks) {
    const std::size_t bytes = started.bytes() * chunks;
    if (address != nullptr && bytes != 0) card().use(started.call.stream, operation_ns, address, bytes);
  };
  if (started.call.operation == nccl_operation::split) return;
  use(started.call.source, source_chunks(started));
  use(started.call.target, target_chunks(started));
}

/// Performs the call in one process for all ranks.
int perform_alone(const started_call& started) {
  const nccl_call& call = started.call;
  const auto* const source = static_cast<const std::byte*>(call.source);
  auto* const target = static_cast<std::byte*>(call.target);
  const std::size_t bytes = started.bytes();
  const bool one_of_many = call.operation == nccl_operation::reduce_scatter ||
                           call.operation == nccl_operation::all_to_all || call.operation == nccl_operation::scatter;
  if (call.operation == nccl_operation::split) {
    if (call.color < 0) return *call.made = nullptr, nccl_success;
    return join_communicator(call.made, call.comm->ranks, call.comm->rank, {}, call.name);
  }
  if (source_chunks(started) == 0 || target_chunks(started) == 0) return occupy_stream(started), nccl_success;
  const std::byte* const own = source + (one_of_many ? own_rank(call) * bytes : 0);
  for (std::size_t chunk = 0; chunk < target_chunks(started); ++chunk) {
    if (!card().copy(target + chunk * bytes, own, bytes, call.stream)) {
      return report_error(*call.comm, nccl_system_error, std::string{call.name} + ": the card refused a copy");
    }
  }
  return nccl_success;
}

/// Sends everything that the other ranks need from this one; never waits.
int start(started_call& started) {
  nccl_call& call = started.call;
  rank_exchange& exchange = call.comm->exchange;
  const std::size_t bytes = started.bytes();
  started.keeps_values = card().keeps_values(bytes);
  if (call.operation == nccl_operation::split) {
    split_message own{.color = call.color, .key = call.key, .id = {}};
    if (call.color >= 0) {
      if (const std::string why = rank_exchange::make(own.id); !why.empty()) {
        return report_error(*call.comm, nccl_system_error, why);
      }
    }
    started.keeps_values = true;
    started.values.resize(sizeof own);
    std::memcpy(started.values.data(), &own, sizeof own);
  } else if (started.keeps_values) {
    started.values.resize(bytes * source_chunks(started));
    if (!started.values.empty()) {
      started.is_true = load_values(started.values.data(), call.source, started.values.size());
    }
  }
  const message_head head = head_of(started);
  const auto chunk = [&](int rank) {
    return started.values.data() + (started.keeps_values ? static_cast<std::size_t>(rank) * bytes : 0);
  };
  std::string why;
  switch (call.operation) {
    case nccl_operation::all_reduce:
    case nccl_operation::all_gather:
    case nccl_operation::split:
      why = exchange.send_to_all(head, started.values.data());
      break;
    case nccl_operation::broadcast:
      if (started.is_root()) why = exchange.send_to_all(head, started.values.data());
      break;
    case nccl_operation::scatter:
      if (!started.is_root()) break;
      [[fallthrough]];
    case nccl_operation::reduce_scatter:
    case nccl_operation::all_to_all:
      for (int rank = 0; rank < call.comm->ranks && why.empty(); ++rank) {
        if (rank != call.comm->rank) why = exchange.send(rank, lane::collective, head, chunk(rank));
      }
      break;
    case nccl_operation::reduce:
    case nccl_operation::gather:
      if (!started.is_root()) why = exchange.send(call.root, lane::collective, head, started.values.data());
      break;
    case nccl_operation::send:
      why = exchange.send(call.root, lane::point_to_point, head, started.values.data());
      break;
    case nccl_operation::receive:
      break;
  }
  return why.empty() ? nccl_success : report_error(*call.comm, nccl_system_error, why);
}

/// Returns the ranks whose messages the call receives, including this one.
std::vector<int> senders(const started_call& started) {
  const nccl_call& call = started.call;
  switch (call.operation) {
    case nccl_operation::broadcast:
    case nccl_operation::scatter:
    case nccl_operation::receive:
      return {call.root};
    case nccl_operation::send:
      return {};
    case nccl_operation::reduce:
    case nccl_operation::gather:
      if (!started.is_root()) return {};
      break;
    default:
      break;
  }
  std::vector<int> all(rank_count(call));
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = static_cast<int>(rank);
  return all;
}

/// Receives the message of each sender. This rank's own message does not pass through a log.
int receive(const started_call& started, const std::vector<int>& ranks, std::vector<message>& result) {
  const nccl_call& call = started.call;
  const std::size_t bytes = started.bytes();
  const message_head wanted = head_of(started);
  for (const int rank : ranks) {
    message& each = result.emplace_back();
    if (rank == call.comm->rank && call.operation != nccl_operation::receive) {
      each.head = wanted;
      const std::size_t chunk = source_chunks(started) > 1 ? own_rank(call) * bytes : 0;
      if (started.keeps_values) {
        each.values.assign(started.values.begin() + static_cast<std::ptrdiff_t>(chunk),
                           started.values.begin() + static_cast<std::ptrdiff_t>(chunk + bytes));
      }
      continue;
    }
    const bool is_sent_to_all = call.operation == nccl_operation::all_reduce ||
                                call.operation == nccl_operation::all_gather ||
                                call.operation == nccl_operation::broadcast || call.operation == nccl_operation::split;
    rank_exchange& exchange = call.comm->exchange;
    const std::string why =
        is_sent_to_all ? exchange.receive_from_all(rank, call.name, each)
                       : exchange.receive(
                             rank, call.operation == nccl_operation::receive ? lane::point_to_point : lane::collective,
                             call.name, each);
    if (!why.empty()) return lost_rank(*call.comm, why);
    const message_head& got = each.head;
    if (got.operation == wanted.operation && got.bytes == wanted.bytes && got.root == wanted.root &&
        got.reduction == wanted.reduction && got.type == wanted.type) {
      continue;
    }
    return report_error(*call.comm, nccl_invalid_usage,
                        "ranks call different operations: " + described(wanted) + " here, " + described(got) + " on " +
                            exchange.name_of(rank));
  }
  return nccl_success;
}

/// Creates the communicator of the ranks with this one's color, ordered by key. It uses the file of its first rank.
int finish_split(const started_call& started, const std::vector<message>& messages) {
  const nccl_call& call = started.call;
  struct member {
    split_message said;
    int rank;
  };
  std::vector<member> members;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    member each{{}, static_cast<int>(rank)};
    std::memcpy(&each.said, messages[rank].values.data(), sizeof each.said);
    if (each.said.color == call.color) members.push_back(each);
  }
  if (call.color < 0) return *call.made = nullptr, nccl_success;
  std::stable_sort(members.begin(), members.end(),
                   [](const member& first, const member& second) { return first.said.key < second.said.key; });
  int own = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].rank == call.comm->rank) own = static_cast<int>(i);
  }
  if (own != 0 || members.size() == 1) rank_exchange::drop(members[static_cast<std::size_t>(own)].said.id);
  const int done =
      join_communicator(call.made, static_cast<int>(members.size()), own, members.front().said.id, call.name);
  if (done == nccl_success) await_at_end(*static_cast<communicator*>(*call.made));
  return done;
}

/// Receives the messages of the other ranks and writes the result.
int finish(const started_call& started) {
  const nccl_call& call = started.call;
  const std::size_t bytes = started.bytes();
  std::vector<message> messages;
  if (const int e = receive(started, senders(started), messages); e != nccl_success) return e;
  if (call.operation == nccl_operation::split) return finish_split(started, messages);
  const bool all_kept = std::all_of(messages.begin(), messages.end(),
                                    [](const message& each) { return each.head.kept == each.head.bytes; });
  if (bytes == 0 || target_chunks(started) == 0) return nccl_success;
  auto* const target = static_cast<std::byte*>(call.target);
  if (!all_kept) return card().store_values(target, nullptr, bytes * target_chunks(started), false), nccl_success;
  const bool all_true =
      std::all_of(messages.begin(), messages.end(), [](const message& each) { return each.head.is_true != 0; });
  switch (call.operation) {
    case nccl_operation::all_reduce:
    case nccl_operation::reduce:
    case nccl_operation::reduce_scatter: {
      std::vector<const std::byte*> parts;
      for (const message& each : messages) parts.push_back(each.values.data());
      const std::vector<std::byte> sum = reduce_values(parts, call.count, call.type, find_reduction(call.reduction_id));
      card().store_values(target, sum.data(), sum.size(), all_true);
      break;
    }
    default:
      for (std::size_t chunk = 0; chunk < messages.size(); ++chunk) {
        card().store_values(target + chunk * bytes, messages[chunk].values.data(), bytes,
                            messages[chunk].head.is_true != 0);
      }
  }
  return nccl_success;
}

/// Starts all calls before it waits for any, so that the order within a group does not matter.
int perform(const std::vector<nccl_call>& calls) {
  int first_error = nccl_success;
  const auto note = [&](const nccl_call& call, int error) {
    if (error == nccl_success) return;
    call.comm->error = error;
    if (first_error == nccl_success) first_error = error;
  };
  std::vector<started_call> started;
  for (const nccl_call& call : calls) {
    started_call& each = started.emplace_back(started_call{call});
    if (call.comm->alone) {
      each.finished = true;
      note(call, perform_alone(each));
      continue;
    }
    occupy_stream(each);
    // Captured calls move nothing between ranks when their graph is launched.
    each.finished = call.operation != nccl_operation::split && card().captures(call.stream);
    if (each.finished) continue;
    const int error = start(each);
    each.finished = error != nccl_success;
    note(call, error);
  }
  for (const started_call& each : started) {
    if (!each.finished && first_error == nccl_success) note(each.call, finish(each));
  }
  std::vector<communicator*> joining;
  joining.swap(group.joining);
  for (communicator* const each : joining) {
    if (first_error != nccl_success) break;
    if (const std::string why = each->exchange.await_all(); !why.empty()) {
      first_error = lost_rank(*each, "a new communicator waits for " + why);
    }
  }
  return first_error;
}

}  // namespace

void await_at_end(communicator& made) {
  if (!made.alone) group.joining.push_back(&made);
}

void begin_group() { ++group.depth; }

int end_group() {
  if (group.depth == 0) return nccl_invalid_usage;
  if (--group.depth > 0) return nccl_success;
  std::vector<nccl_call> calls;
  calls.swap(group.calls);
  return perform(calls);
}

int submit(const nccl_call& call) {
  const int ranks = call.comm == nullptr ? 0 : call.comm->ranks;
  if (call.comm == nullptr || value_bytes(call.type) == 0 || call.root < 0 || call.root >= ranks) {
    return nccl_invalid_argument;
  }
  if (group.depth == 0) return perform({call});
  group.calls.push_back(call);
  return nccl_success;
}

}  // namespace gpumem::simcuda
