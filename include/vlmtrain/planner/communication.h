#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "vlmtrain/memory/gpu_table.h"

namespace vlmtrain::planner {

/// The links between the GPUs of a run. Bandwidths are in bytes per second and direction.
struct Interconnect {
  int64_t world_size = 1;        ///< ranks, each with one GPU
  int64_t nodes = 1;             ///< machines with the same number of ranks each
  double gpu_bandwidth = 0;      ///< between two GPUs of a machine
  double network_bandwidth = 0;  ///< between two machines
  bool is_nvlink = false;        ///< between the GPUs of a machine; otherwise PCI Express

  /// Returns "NVLink (450 GB/s)" or "PCI Express (32 GB/s) and a network of 100 Gbit/s".
  std::string to_string() const;
};

/// Returns the interconnect according to data sheets: NVLink if every board of the GPU's form factor
/// has it, otherwise 16 lanes of PCI Express of the GPU's generation. `network_gbit` is the network
/// bandwidth of a machine in 10⁹ bits per second.
Interconnect make_interconnect(const memory::Gpu& gpu, int64_t world_size, int64_t nodes, double network_gbit);

/// The ranks that take part in a collective.
enum class CollectiveGroup {
  kWorld,
  kNode,      ///< the ranks of one machine
  kReplicas,  ///< one rank of each machine; all ranks of a machine communicate at the same time
};

/// One collective of a step.
struct CollectiveCall {
  int64_t bytes = 0;  ///< of all ranks' parts together
  /// Phases of a ring, each of which transfers (n − 1) / n of the bytes: 2 for all_reduce, 1 for
  /// reduce_scatter and all_gather.
  int64_t ring_phases = 2;
  CollectiveGroup group = CollectiveGroup::kWorld;

  bool operator==(const CollectiveCall&) const = default;
};

/// The collectives of a step, in order. All lists are empty for one rank.
struct StepCollectives {
  std::vector<CollectiveCall> reductions{};
  int64_t overlapped_reductions = 0;          ///< the first ones, which overlap with the last backward pass
  std::vector<CollectiveCall> all_gathers{};  ///< after the step, during the next forward pass
  /// Gathers of weights right before a block runs, while the previous block runs.
  std::vector<CollectiveCall> block_all_gathers{};
  /// Reductions of gradients right after a block ran, while the next block runs.
  std::vector<CollectiveCall> block_reduce_scatters{};
  int64_t micro_batches = 1;  ///< in whose passes the collectives of blocks were recorded

  bool operator==(const StepCollectives&) const = default;
};

/// The communication of a step and its predicted duration.
struct Communication {
  Interconnect interconnect;
  StepCollectives collectives;
  int64_t micro_batches = 1;   ///< of the step
  double seconds = 0;          ///< of all collectives
  double exposed_seconds = 0;  ///< of these, the part that no computation hides

  int64_t bytes() const;
  int64_t num_calls() const;
  /// Returns the lower bound of the bytes that each rank sends: (n − 1) / n of the bytes per ring
  /// phase (Patarasuk and Yuan 2009).
  int64_t min_sent_bytes() const;
  nlohmann::ordered_json to_json() const;
};

/// Predicts the duration of the collectives of a step of `micro_batches` micro-batches.
/// `micro_batch_seconds` is the duration of the forward and backward pass of one micro-batch.
///
/// The last backward pass (two thirds of a micro-batch) hides the overlapped reductions. The next
/// forward pass (one third) hides the all_gathers. The passes of their micro-batch hide the
/// collectives of blocks, except for the first gather. A ring phase takes (n − 1) / n of the bytes over
/// the slowest link plus n − 1 hops. The model is not calibrated with measurements.
Communication estimate_communication(const Interconnect& interconnect, StepCollectives collectives,
                                     double micro_batch_seconds, int64_t micro_batches);

}  // namespace vlmtrain::planner
