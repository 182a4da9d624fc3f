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

double seconds_of(const Links& links, const Transfer& transfer) {
  const double bandwidth =
      links.nodes > 1 ? std::min(links.card_bandwidth, links.network_bandwidth) : links.card_bandwidth;
  const double hop = links.nodes > 1 ? kNetworkHopSeconds : kHopSeconds;
  const auto others = static_cast<double>(links.world_size - 1);
  const double turn =
      others / static_cast<double>(links.world_size) * static_cast<double>(transfer.bytes) / bandwidth + others * hop;
  return static_cast<double>(transfer.turns) * turn;
}

template <class Count>
int64_t sum_over(const StepSums& sums, const Count& count) {
  int64_t sum = 0;
  for (const auto* list : {&sums.sums, &sums.gathers}) {
    for (const Transfer& transfer : *list) sum += count(transfer);
  }
  return sum;
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
  return sum_over(sums, [](const Transfer& transfer) { return transfer.bytes; });
}

int64_t Communication::least_sent_bytes() const {
  const int64_t turned = sum_over(sums, [](const Transfer& transfer) { return transfer.turns * transfer.bytes; });
  return turned * (links.world_size - 1) / links.world_size;
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

Communication communication_of(const Links& links, StepSums sums, double pass_seconds) {
  Communication communication{.links = links, .sums = std::move(sums)};
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
  return communication;
}

}  // namespace vlmtrain::planner
