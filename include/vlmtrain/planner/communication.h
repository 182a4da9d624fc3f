#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/memory/host_link.h"

namespace vlmtrain::planner {

/// The links between the GPUs of a run. Bandwidths are in bytes per second, per direction.
struct Interconnect {
  int64_t world_size = 1;           ///< ranks, each with one GPU
  int64_t num_nodes = 1;            ///< machines with the same number of ranks each
  double intra_node_bandwidth = 0;  ///< between two GPUs of a machine
  double network_bandwidth = 0;     ///< of a machine's network interface, shared by its GPUs
  bool uses_nvlink = false;         ///< NVLink connects the GPUs of a machine; otherwise PCI Express

  /// Returns a phrase such as "NVLink (450 GB/s each way)" or "PCI Express (32 GB/s each way) and a
  /// network of 100 Gbit/s per node". Empty for one rank.
  std::string to_string() const;
};

/// Returns the interconnect according to data sheets: NVLink if every board of the GPU's form
/// factor has it, otherwise 16 lanes of PCI Express of the GPU's generation. `network_gbit` is the
/// network bandwidth of a machine in 10⁹ bits per second. REQUIRES: world_size is a multiple of
/// num_nodes.
Interconnect make_interconnect(const memory::GpuSpec& gpu, int64_t world_size, int64_t num_nodes, double network_gbit);

/// Returns the speed of the link between a GPU and host memory by data sheets: four fifths of 16 lanes of PCI
/// Express of its generation, in both directions at a time. NVLink-C2C is faster.
memory::HostLinkSpeed get_host_link_speed(const memory::GpuSpec& gpu);

/// The ranks that take part in a collective.
enum class CollectiveGroup {
  kWorld,
  kNode,      ///< the ranks of one machine
  kReplicas,  ///< one rank of each machine; all ranks of a machine communicate at the same time
};

/// One collective of a step.
struct CollectiveCall {
  int64_t bytes = 0;  ///< size of the whole tensor, not of a rank's shard
  /// Phases of the ring algorithm. In each one, a rank sends (n − 1) / n of the bytes: 2 phases for
  /// all_reduce, 1 for reduce_scatter and all_gather.
  int64_t num_ring_phases = 2;
  CollectiveGroup group = CollectiveGroup::kWorld;

  bool operator==(const CollectiveCall&) const = default;
};

/// The collectives of a step, in order. All lists are empty for one rank.
struct StepCollectives {
  std::vector<CollectiveCall> gradient_reductions{};  ///< all_reduce and reduce_scatter calls on gradient buckets
  /// Counted from the first of gradient_reductions. They overlap with the last backward pass.
  int64_t num_overlapped_reductions = 0;
  std::vector<CollectiveCall> weight_all_gathers{};  ///< of updated weights; they overlap with the next forward pass
  /// All_gathers of sharded weights; each overlaps with the computation of the previous block.
  std::vector<CollectiveCall> block_all_gathers{};
  /// Reduce_scatters of block gradients; each overlaps with the computation of the next block.
  std::vector<CollectiveCall> block_reduce_scatters{};
  int64_t num_micro_batches = 1;  ///< covered by the two block lists together

  bool operator==(const StepCollectives&) const = default;
};

/// The communication of a step and its predicted duration.
struct CommunicationEstimate {
  Interconnect interconnect;
  StepCollectives collectives;
  int64_t num_micro_batches = 1;  ///< of the step
  double seconds = 0;             ///< duration of all collectives
  double exposed_seconds = 0;     ///< part of `seconds` that does not overlap with computation

  /// Returns the sum of CollectiveCall::bytes over the step.
  int64_t bytes() const;
  /// Returns the number of collectives in the step.
  int64_t count_collectives() const;
  /// Returns the lower bound of the bytes that each rank sends: (n − 1) / n of the bytes per ring
  /// phase (Patarasuk and Yuan 2009).
  int64_t compute_min_sent_bytes() const;
  /// Returns the object `communication` of plan.json.
  nlohmann::ordered_json to_json() const;
};

/// Predicts the duration of the collectives of a step of `num_micro_batches` micro-batches.
/// `micro_batch_seconds` is the duration of the forward and backward pass of one micro-batch.
///
/// The model assumes:
/// - The backward pass takes two thirds of a micro-batch and overlaps with the first
///   num_overlapped_reductions of gradient_reductions.
/// - The forward pass takes one third and overlaps with the weight_all_gathers of the previous
///   step.
/// - The collectives of blocks overlap with the passes of their micro-batch, except for the first
///   all_gather.
/// - A ring phase transfers (n − 1) / n of the bytes over the slowest link and has n − 1 hops.
///
/// The model is not calibrated with measurements.
CommunicationEstimate estimate_communication(const Interconnect& interconnect, StepCollectives collectives,
                                             double micro_batch_seconds, int64_t num_micro_batches);

}  // namespace vlmtrain::planner
