#include "vlmtrain/planner/communication.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "vlmtrain/io/json.h"

namespace vlmtrain::planner {

namespace {

/// Returns the bandwidth of 16 PCI Express lanes, per direction, for a GPU of compute capability
/// `architecture` / 10. Lanes of generations 3 to 5 have 8, 16 and 32 GT/s with 128b/130b encoding.
double get_pcie_bandwidth(int architecture) {
  constexpr double kPcieGen3Bandwidth = 15.75e9, kPcieGen4Bandwidth = 31.5e9, kPcieGen5Bandwidth = 63e9;
  if (architecture < 80) return kPcieGen3Bandwidth;
  return architecture < 90 ? kPcieGen4Bandwidth : kPcieGen5Bandwidth;
}

/// Latencies of a hop. NVIDIA publishes none. They have the order of magnitude of NCCL's tuning
/// tables (tuning.cc): a few microseconds within a machine, about ten over a network. Not measured.
constexpr double kIntraNodeHopSeconds = 5e-6;
constexpr double kNetworkHopSeconds = 15e-6;
/// Fractions of a micro-batch's time: for each matmul of the forward pass, the backward pass has
/// two.
constexpr double kBackwardTimeFraction = 2.0 / 3, kForwardTimeFraction = 1.0 / 3;

int64_t count_group_ranks(const Interconnect& interconnect, CollectiveGroup group) {
  switch (group) {
    case CollectiveGroup::kNode:
      return interconnect.world_size / interconnect.num_nodes;
    case CollectiveGroup::kReplicas:
      return interconnect.num_nodes;
    case CollectiveGroup::kWorld:
      break;
  }
  return interconnect.world_size;
}

/// Returns the predicted duration of a collective (estimate_communication()).
double estimate_collective_seconds(const Interconnect& interconnect, const CollectiveCall& call) {
  const bool uses_network = interconnect.num_nodes > 1 && call.group != CollectiveGroup::kNode;
  // A ring of all ranks enters and leaves each machine once. For replicas, each GPU of a machine
  // has its own ring, so that they share the machine's network bandwidth.
  const double network_bandwidth = call.group == CollectiveGroup::kReplicas
                                       ? interconnect.network_bandwidth * static_cast<double>(interconnect.num_nodes) /
                                             static_cast<double>(interconnect.world_size)
                                       : interconnect.network_bandwidth;
  const double bandwidth =
      uses_network ? std::min(interconnect.intra_node_bandwidth, network_bandwidth) : interconnect.intra_node_bandwidth;
  const double hop_seconds = uses_network ? kNetworkHopSeconds : kIntraNodeHopSeconds;
  const auto num_ranks = static_cast<double>(count_group_ranks(interconnect, call.group));
  const double phase_seconds =
      (num_ranks - 1) / num_ranks * static_cast<double>(call.bytes) / bandwidth + (num_ranks - 1) * hop_seconds;
  return static_cast<double>(call.num_ring_phases) * phase_seconds;
}

double estimate_collective_seconds(const Interconnect& interconnect, const std::vector<CollectiveCall>& calls) {
  double seconds = 0;
  for (const CollectiveCall& call : calls) seconds += estimate_collective_seconds(interconnect, call);
  return seconds;
}

/// Returns the sum of `metric` over all calls of a step. Calls of blocks were recorded in another
/// number of micro-batches than the step has, so that their sum is scaled.
template <class Metric>
int64_t sum_over_step(const CommunicationEstimate& communication, const Metric& metric) {
  const StepCollectives& collectives = communication.collectives;
  int64_t total = 0, block_total = 0;
  for (const auto* calls : {&collectives.gradient_reductions, &collectives.weight_all_gathers}) {
    for (const CollectiveCall& call : *calls) total += metric(call);
  }
  for (const auto* calls : {&collectives.block_all_gathers, &collectives.block_reduce_scatters}) {
    for (const CollectiveCall& call : *calls) block_total += metric(call);
  }
  return total + block_total / collectives.num_micro_batches * communication.num_micro_batches;
}

}  // namespace

std::string Interconnect::to_string() const {
  constexpr double kGiga = 1e9, kBitsPerByte = 8;
  std::string text;
  if (world_size > num_nodes) {
    text =
        fmt::format("{} ({:.0f} GB/s each way)", uses_nvlink ? "NVLink" : "PCI Express", intra_node_bandwidth / kGiga);
  }
  if (num_nodes > 1) {
    text += fmt::format("{}a network of {:g} Gbit/s per node", text.empty() ? "" : " and ",
                        network_bandwidth * kBitsPerByte / kGiga);
  }
  return text;
}

Interconnect make_interconnect(const memory::GpuSpec& gpu, int64_t world_size, int64_t num_nodes, double network_gbit) {
  constexpr double kBytesPerGbit = 1e9 / 8;
  const bool uses_nvlink = gpu.nvlink_bandwidth > 0;
  return {.world_size = world_size,
          .num_nodes = num_nodes,
          .intra_node_bandwidth = uses_nvlink ? gpu.nvlink_bandwidth : get_pcie_bandwidth(gpu.architecture),
          .network_bandwidth = network_gbit * kBytesPerGbit,
          .uses_nvlink = uses_nvlink};
}

memory::HostLinkSpeed get_host_link_speed(const memory::GpuSpec& gpu) {
  constexpr double kLinkEfficiency = 0.8;
  const double speed = kLinkEfficiency * get_pcie_bandwidth(gpu.architecture);
  return {.in = speed, .out = speed, .both = speed};
}

int64_t CommunicationEstimate::bytes() const {
  return sum_over_step(*this, [](const CollectiveCall& call) { return call.bytes; });
}

int64_t CommunicationEstimate::count_collectives() const {
  return sum_over_step(*this, [](const CollectiveCall&) { return int64_t{1}; });
}

int64_t CommunicationEstimate::compute_min_sent_bytes() const {
  int64_t min_bytes = 0;
  for (const CollectiveGroup group : {CollectiveGroup::kWorld, CollectiveGroup::kNode, CollectiveGroup::kReplicas}) {
    const int64_t num_ranks = count_group_ranks(interconnect, group);
    const int64_t phase_bytes = sum_over_step(*this, [group](const CollectiveCall& call) {
      return call.group == group ? call.num_ring_phases * call.bytes : 0;
    });
    // phase_bytes · (num_ranks − 1) / num_ranks without overflow.
    min_bytes += phase_bytes / num_ranks * (num_ranks - 1) + phase_bytes % num_ranks * (num_ranks - 1) / num_ranks;
  }
  return min_bytes;
}

nlohmann::ordered_json CommunicationEstimate::to_json() const {
  nlohmann::ordered_json json{
      {"world_size", interconnect.world_size},
      {"nodes", interconnect.num_nodes},
      {"links", interconnect.to_string()},
      {"bytes_per_step", bytes()},
      {"calls_per_step", count_collectives()},
      {"min_sent_bytes", compute_min_sent_bytes()},
      {"seconds", seconds},
      {"exposed_seconds", exposed_seconds},
      {"predicted", "seconds are computed from counted bytes and published bandwidths, not measured"}};
  io::add_field_aliases(json, {{"min_sent_bytes", "least_sent_bytes"}, {"exposed_seconds", "waiting_seconds"}});
  return json;
}

CommunicationEstimate estimate_communication(const Interconnect& interconnect, StepCollectives collectives,
                                             double micro_batch_seconds, int64_t num_micro_batches) {
  CommunicationEstimate communication{
      .interconnect = interconnect, .collectives = std::move(collectives), .num_micro_batches = num_micro_batches};
  if (interconnect.world_size == 1) return communication;
  double seconds_hidden_by_backward = 0, seconds_hidden_by_forward = 0;
  const StepCollectives& step_collectives = communication.collectives;
  for (size_t i = 0; i < step_collectives.gradient_reductions.size(); ++i) {
    const double seconds = estimate_collective_seconds(interconnect, step_collectives.gradient_reductions[i]);
    communication.seconds += seconds;
    if (static_cast<int64_t>(i) < step_collectives.num_overlapped_reductions) seconds_hidden_by_backward += seconds;
  }
  for (const CollectiveCall& call : step_collectives.weight_all_gathers) {
    const double seconds = estimate_collective_seconds(interconnect, call);
    communication.seconds += seconds;
    seconds_hidden_by_forward += seconds;
  }
  const double computation_seconds = std::max(0.0, micro_batch_seconds);
  communication.exposed_seconds = communication.seconds -
                                  std::min(seconds_hidden_by_backward, kBackwardTimeFraction * computation_seconds) -
                                  std::min(seconds_hidden_by_forward, kForwardTimeFraction * computation_seconds);
  if (step_collectives.block_all_gathers.empty()) return communication;
  const double block_seconds = (estimate_collective_seconds(interconnect, step_collectives.block_all_gathers) +
                                estimate_collective_seconds(interconnect, step_collectives.block_reduce_scatters)) /
                               static_cast<double>(step_collectives.num_micro_batches);
  const double first_all_gather_seconds =
      std::min(block_seconds, estimate_collective_seconds(interconnect, step_collectives.block_all_gathers.front()));
  communication.seconds += static_cast<double>(num_micro_batches) * block_seconds;
  communication.exposed_seconds +=
      static_cast<double>(num_micro_batches) *
      (first_all_gather_seconds + std::max(0.0, block_seconds - first_all_gather_seconds - computation_seconds));
  return communication;
}

}  // namespace vlmtrain::planner
