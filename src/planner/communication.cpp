#include "vlmtrain/planner/communication.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace vlmtrain::planner {

namespace {

/// PCI Express with 16 lanes, each way: 8, 16 and 32 GT/s a lane with 128b/130b (generations 3 to 5).
double pci_bandwidth(int architecture) {
  constexpr double kThird = 15.75e9, kFourth = 31.5e9, kFifth = 63e9;
  if (architecture < 80) return kThird;
  return architecture < 90 ? kFourth : kFifth;
}

/// What a hop takes beside its bytes; NVIDIA publishes none, these are the order of magnitude of NCCL's own tuning
/// tables (its tuning.cc: some microseconds in a machine, some ten over a network).
constexpr double kHopSeconds = 5e-6;
constexpr double kNetworkHopSeconds = 15e-6;
constexpr double kBackwardShare = 2.0 / 3, kForwardShare = 1.0 / 3;

int64_t ranks_among(const Links& links, Among among) {
  switch (among) {
    case Among::kNode:
      return links.world_size / links.nodes;
    case Among::kCopies:
      return links.nodes;
    case Among::kAll:
      break;
  }
  return links.world_size;
}

double seconds_of(const Links& links, const Transfer& transfer) {
  const bool is_over_network = links.nodes > 1 && transfer.among != Among::kNode;
  // A ring of all enters and leaves a machine once; of copies, each card of a machine has one.
  const double network = transfer.among == Among::kCopies ? links.network_bandwidth * static_cast<double>(links.nodes) /
                                                                static_cast<double>(links.world_size)
                                                          : links.network_bandwidth;
  const double bandwidth = is_over_network ? std::min(links.card_bandwidth, network) : links.card_bandwidth;
  const double hop = is_over_network ? kNetworkHopSeconds : kHopSeconds;
  const auto ranks = static_cast<double>(ranks_among(links, transfer.among));
  const double turn = (ranks - 1) / ranks * static_cast<double>(transfer.bytes) / bandwidth + (ranks - 1) * hop;
  return static_cast<double>(transfer.turns) * turn;
}

double seconds_of(const Links& links, const std::vector<Transfer>& transfers) {
  double seconds = 0;
  for (const Transfer& transfer : transfers) seconds += seconds_of(links, transfer);
  return seconds;
}

/// Over all calls of a step, of which those of blocks were counted in other passes.
template <class Count>
int64_t sum_over(const Communication& communication, const Count& count) {
  const StepSums& all = communication.sums;
  int64_t sum = 0, of_blocks = 0;
  for (const auto* list : {&all.sums, &all.gathers}) {
    for (const Transfer& transfer : *list) sum += count(transfer);
  }
  for (const auto* list : {&all.block_gathers, &all.block_sums}) {
    for (const Transfer& transfer : *list) of_blocks += count(transfer);
  }
  return sum + of_blocks / all.passes * communication.passes;
}

}  // namespace

std::string Links::words() const {
  constexpr double kGiga = 1e9, kBits = 8;
  std::string text;
  if (world_size > nodes) {
    text = fmt::format("{} ({:.0f} GB/s each way)", is_nvlink ? "NVLink" : "PCI Express", card_bandwidth / kGiga);
  }
  if (nodes > 1) {
    text += fmt::format("{}a network of {:g} Gbit/s a machine", text.empty() ? "" : " and ",
                        network_bandwidth * kBits / kGiga);
  }
  return text;
}

Links links_of(const memory::Gpu& gpu, int64_t world_size, int64_t nodes, double network_gbit) {
  constexpr double kBytesOfGbit = 1e9 / 8;
  const bool is_nvlink = gpu.nvlink_bandwidth > 0;
  return {.world_size = world_size,
          .nodes = nodes,
          .card_bandwidth = is_nvlink ? gpu.nvlink_bandwidth : pci_bandwidth(gpu.architecture),
          .network_bandwidth = network_gbit * kBytesOfGbit,
          .is_nvlink = is_nvlink};
}

int64_t Communication::bytes() const {
  return sum_over(*this, [](const Transfer& transfer) { return transfer.bytes; });
}

int64_t Communication::calls() const {
  return sum_over(*this, [](const Transfer&) { return int64_t{1}; });
}

int64_t Communication::least_sent_bytes() const {
  int64_t least = 0;
  for (const Among among : {Among::kAll, Among::kNode, Among::kCopies}) {
    const int64_t ranks = ranks_among(links, among);
    const int64_t turned = sum_over(*this, [among](const Transfer& transfer) {
      return transfer.among == among ? transfer.turns * transfer.bytes : 0;
    });
    least += turned / ranks * (ranks - 1) + turned % ranks * (ranks - 1) / ranks;
  }
  return least;
}

nlohmann::ordered_json Communication::to_json() const {
  return {{"world_size", links.world_size},
          {"nodes", links.nodes},
          {"links", links.words()},
          {"bytes_per_step", bytes()},
          {"calls_per_step", calls()},
          {"least_sent_bytes", least_sent_bytes()},
          {"seconds", seconds},
          {"waiting_seconds", waiting_seconds},
          {"predicted", "seconds are computed from counted bytes and published bandwidths, not measured"}};
}

Communication communication_of(const Links& links, StepSums sums, double pass_seconds, int64_t passes) {
  Communication communication{.links = links, .sums = std::move(sums), .passes = passes};
  if (links.world_size == 1) return communication;
  double hidden_behind_backward = 0, hidden_behind_forward = 0;
  const StepSums& all = communication.sums;
  for (size_t i = 0; i < all.sums.size(); ++i) {
    const double seconds = seconds_of(links, all.sums[i]);
    communication.seconds += seconds;
    if (static_cast<int64_t>(i) < all.overlapping) hidden_behind_backward += seconds;
  }
  for (const Transfer& gather : all.gathers) {
    const double seconds = seconds_of(links, gather);
    communication.seconds += seconds;
    hidden_behind_forward += seconds;
  }
  const double pass = std::max(0.0, pass_seconds);
  communication.waiting_seconds = communication.seconds - std::min(hidden_behind_backward, kBackwardShare * pass) -
                                  std::min(hidden_behind_forward, kForwardShare * pass);
  if (all.block_gathers.empty()) return communication;
  const double of_a_pass =
      (seconds_of(links, all.block_gathers) + seconds_of(links, all.block_sums)) / static_cast<double>(all.passes);
  const double first = std::min(of_a_pass, seconds_of(links, all.block_gathers.front()));
  communication.seconds += static_cast<double>(passes) * of_a_pass;
  communication.waiting_seconds += static_cast<double>(passes) * (first + std::max(0.0, of_a_pass - first - pass));
  return communication;
}

}  // namespace vlmtrain::planner
