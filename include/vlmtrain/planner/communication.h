#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "vlmtrain/memory/gpu_table.h"

namespace vlmtrain::planner {

/// What joins the cards of a run. Bandwidths are in bytes a second, each way.
struct Interconnect {
  int64_t world_size = 1;  ///< ranks, each with a card
  int64_t nodes = 1;       ///< machines, which have as many ranks each
  double gpu_bandwidth = 0;
  double network_bandwidth = 0;  ///< of a machine, to another one
  bool is_nvlink = false;        ///< between the cards of a machine; else PCI Express

  /// "NVLink (450 GB/s)", "PCI Express (32 GB/s) and a network of 100 Gbit/s".
  std::string to_string() const;
};

/// By data sheets: NVLink where the card is of a form that has it on every board, else PCI Express with 16 lanes of the
/// card's generation. `network_gbit`: of a machine, in 10⁹ bits a second.
Interconnect make_interconnect(const memory::Gpu& gpu, int64_t world_size, int64_t nodes, double network_gbit);

/// Which ranks make a call together.
enum class CollectiveGroup {
  kWorld,
  kNode,      ///< those of a machine
  kReplicas,  ///< one of each machine; those of a machine at the same time
};

/// A call of ranks.
struct CollectiveCall {
  int64_t bytes = 0;        ///< of all their parts together
  int64_t ring_phases = 2;  ///< of a ring, in each of which (n − 1) / n of them travel: a sum takes 2, one of parts 1
  CollectiveGroup group = CollectiveGroup::kWorld;

  bool operator==(const CollectiveCall&) const = default;
};

/// What the ranks of a step add up, and gather.
struct StepCollectives {
  std::vector<CollectiveCall> reductions{};   ///< in order; empty for one rank
  int64_t overlapped_reductions = 0;          ///< the first ones: under way while the last backward pass goes on
  std::vector<CollectiveCall> all_gathers{};  ///< behind the step, while the next forward pass begins
  std::vector<CollectiveCall>
      block_all_gathers{};  ///< of weights, just before a block runs, while the one before it does
  std::vector<CollectiveCall>
      block_reduce_scatters{};  ///< of gradients, when a block has run, while the one before it does
  int64_t micro_batches = 1;    ///< that those of blocks were made in, forward and backward

  bool operator==(const StepCollectives&) const = default;
};

/// And how long that is predicted to take.
struct Communication {
  Interconnect interconnect;
  StepCollectives collectives;
  int64_t micro_batches = 1;   ///< of a step: its micro-batches
  double seconds = 0;          ///< of all
  double exposed_seconds = 0;  ///< of these, what no pass hides

  int64_t bytes() const;
  int64_t num_calls() const;
  /// What each rank has to send at least, (n − 1) / n of them in each turn: a ring's (Patarasuk and Yuan 2009).
  int64_t min_sent_bytes() const;
  nlohmann::ordered_json to_json() const;
};

/// `micro_batch_seconds`: forward and backward pass of a micro-batch, of which a step has so many. The last one's
/// backward pass (two thirds of it) hides the sums that overlap with it; the next step's first forward pass (a third)
/// hides what is gathered. What is told of blocks is hidden by the pass it belongs to, but for the first gather. A turn
/// takes (n − 1) / n of the bytes over the slowest link of a ring, and n − 1 hops. Nothing of this is measured.
Communication estimate_communication(const Interconnect& interconnect, StepCollectives collectives,
                                     double micro_batch_seconds, int64_t micro_batches);

}  // namespace vlmtrain::planner
