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
  constexpr double kGen3 = 15.75e9, kGen4 = 31.5e9, kGen5 = 63e9;
  if (architecture < 80) return kGen3;
  return architecture < 90 ? kGen4 : kGen5;
}

/// Latencies of a hop. NVIDIA publishes none. They have the order of magnitude of NCCL's tuning
/// tables (tuning.cc): a few microseconds within a machine, about ten over a network. Not measured.
constexpr double kHopSeconds = 5e-6;
constexpr double kNetworkHopSeconds = 15e-6;
/// Fractions of a micro-batch's time: for each matmul of the forward pass, the backward pass has
/// two.
constexpr double kBackwardShare = 2.0 / 3, kForwardShare = 1.0 / 3;

int64_t num_ranks_in_group(const Interconnect& interconnect, CollectiveGroup group) {
  switch (group) {
    case CollectiveGroup::kNode:
      return interconnect.world_size / interconnect.nodes;
    case CollectiveGroup::kReplicas:
      return interconnect.nodes;
    case CollectiveGroup::kWorld:
      break;
  }
  return interconnect.world_size;
}

/// Returns the predicted duration of a collective (estimate_communication()).
double estimate_seconds(const Interconnect& interconnect, const CollectiveCall& call) {
  const bool is_over_network = interconnect.nodes > 1 && call.group != CollectiveGroup::kNode;
  // A ring of all ranks enters and leaves each machine once. For replicas, each GPU of a machine
  // has its own ring, so that they share the machine's network bandwidth.
  const double network_bandwidth = call.group == CollectiveGroup::kReplicas
                                       ? interconnect.network_bandwidth * static_cast<double>(interconnect.nodes) /
                                             static_cast<double>(interconnect.world_size)
                                       : interconnect.network_bandwidth;
  const double bandwidth =
      is_over_network ? std::min(interconnect.gpu_bandwidth, network_bandwidth) : interconnect.gpu_bandwidth;
  const double hop_seconds = is_over_network ? kNetworkHopSeconds : kHopSeconds;
  const auto num_ranks = static_cast<double>(num_ranks_in_group(interconnect, call.group));
  const double phase_seconds =
      (num_ranks - 1) / num_ranks * static_cast<double>(call.bytes) / bandwidth + (num_ranks - 1) * hop_seconds;
  return static_cast<double>(call.ring_phases) * phase_seconds;
}

double estimate_seconds(const Interconnect& interconnect, const std::vector<CollectiveCall>& calls) {
  double seconds = 0;
  for (const CollectiveCall& call : calls) seconds += estimate_seconds(interconnect, call);
  return seconds;
}

/// Returns the sum of `metric` over all calls of a step. Calls of blocks were recorded in another
/// number of micro-batches than the step has, so that their sum is scaled.
template <class Metric>
int64_t sum_over_step(const Communication& communication, const Metric& metric) {
  const StepCollectives& collectives = communication.collectives;
  int64_t total = 0, block_total = 0;
  for (const auto* calls : {&collectives.reductions, &collectives.all_gathers}) {
    for (const CollectiveCall& call : *calls) total += metric(call);
  }
  for (const auto* calls : {&collectives.block_all_gathers, &collectives.block_reduce_scatters}) {
    for (const CollectiveCall& call : *calls) block_total += metric(call);
  }
  return total + block_total / collectives.micro_batches * communication.micro_batches;
}

}  // namespace

std::string Interconnect::to_string() const {
  constexpr double kGiga = 1e9, kBitsPerByte = 8;
  std::string text;
  if (world_size > nodes) {
    text = fmt::format("{} ({:.0f} GB/s each way)", is_nvlink ? "NVLink" : "PCI Express", gpu_bandwidth / kGiga);
  }
  if (nodes > 1) {
    text += fmt::format("{}a network of {:g} Gbit/s per node", text.empty() ? "" : " and ",
                        network_bandwidth * kBitsPerByte / kGiga);
  }
  return text;
}

Interconnect make_interconnect(const memory::GpuSpec& gpu, int64_t world_size, int64_t nodes, double network_gbit) {
  constexpr double kBytesPerGbit = 1e9 / 8;
  const bool is_nvlink = gpu.nvlink_bandwidth > 0;
  return {.world_size = world_size,
          .nodes = nodes,
          .gpu_bandwidth = is_nvlink ? gpu.nvlink_bandwidth : get_pcie_bandwidth(gpu.architecture),
          .network_bandwidth = network_gbit * kBytesPerGbit,
          .is_nvlink = is_nvlink};
}

int64_t Communication::bytes() const {
  return sum_over_step(*this, [](const CollectiveCall& call) { return call.bytes; });
}

int64_t Communication::num_calls() const {
  return sum_over_step(*this, [](const CollectiveCall&) { return int64_t{1}; });
}

int64_t Communication::min_sent_bytes() const {
  int64_t min_bytes = 0;
  for (const CollectiveGroup group : {CollectiveGroup::kWorld, CollectiveGroup::kNode, CollectiveGroup::kReplicas}) {
    const int64_t num_ranks = num_ranks_in_group(interconnect, group);
    const int64_t phase_bytes = sum_over_step(
        *this, [group](const CollectiveCall& call) { return call.group == group ? call.ring_phases * call.bytes : 0; });
    // phase_bytes · (num_ranks − 1) / num_ranks without overflow.
    min_bytes += phase_bytes / num_ranks * (num_ranks - 1) + phase_bytes % num_ranks * (num_ranks - 1) / num_ranks;
  }
  return min_bytes;
}

nlohmann::ordered_json Communication::to_json() const {
  nlohmann::ordered_json json{
      {"world_size", interconnect.world_size},
      {"nodes", interconnect.nodes},
      {"links", interconnect.to_string()},
      {"bytes_per_step", bytes()},
      {"calls_per_step", num_calls()},
      {"min_sent_bytes", min_sent_bytes()},
      {"seconds", seconds},
      {"exposed_seconds", exposed_seconds},
      {"predicted", "seconds are computed from counted bytes and published bandwidths, not measured"}};
  io::add_field_aliases(json, {{"min_sent_bytes", "least_sent_bytes"}, {"exposed_seconds", "waiting_seconds"}});
  return json;
}

Communication estimate_communication(const Interconnect& interconnect, StepCollectives collectives,
                                     double micro_batch_seconds, int64_t micro_batches) {
  Communication communication{
      .interconnect = interconnect, .collectives = std::move(collectives), .micro_batches = micro_batches};
  if (interconnect.world_size == 1) return communication;
  double hidden_by_backward = 0, hidden_by_forward = 0;
  const StepCollectives& step_collectives = communication.collectives;
  for (size_t i = 0; i < step_collectives.reductions.size(); ++i) {
    const double seconds = estimate_seconds(interconnect, step_collectives.reductions[i]);
    communication.seconds += seconds;
    if (static_cast<int64_t>(i) < step_collectives.overlapped_reductions) hidden_by_backward += seconds;
  }
  for (const CollectiveCall& call : step_collectives.all_gathers) {
    const double seconds = estimate_seconds(interconnect, call);
    communication.seconds += seconds;
    hidden_by_forward += seconds;
  }
  const double compute_seconds = std::max(0.0, micro_batch_seconds);
  communication.exposed_seconds = communication.seconds -
                                  std::min(hidden_by_backward, kBackwardShare * compute_seconds) -
                                  std::min(hidden_by_forward, kForwardShare * compute_seconds);
  if (step_collectives.block_all_gathers.empty()) return communication;
  const double block_seconds = (estimate_seconds(interconnect, step_collectives.block_all_gathers) +
                                estimate_seconds(interconnect, step_collectives.block_reduce_scatters)) /
                               static_cast<double>(step_collectives.micro_batches);
  const double first_gather_seconds =
      std::min(block_seconds, estimate_seconds(interconnect, step_collectives.block_all_gathers.front()));
  communication.seconds += static_cast<double>(micro_batches) * block_seconds;
  communication.exposed_seconds +=
      static_cast<double>(micro_batches) *
      (first_gather_seconds + std::max(0.0, block_seconds - first_gather_seconds - compute_seconds));
  return communication;
}

}  // namespace vlmtrain::planner
