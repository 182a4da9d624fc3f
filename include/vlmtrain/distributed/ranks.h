#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "vlmtrain/base/error.h"
#include "vlmtrain/distributed/collectives.h"
#include "vlmtrain/distributed/launch.h"

namespace vlmtrain::distributed {

/// Why a run of several ranks ends: what the first rank that failed says of itself, or what is said of one that is
/// lost.
struct Failure {
  int64_t rank = 0;
  ExitCode code = ExitCode::kFailed;
  std::string reason{};

  /// "rank 2: …"
  std::string text() const;
};

struct RanksOptions {
  /// Within which all ranks have to be there.
  std::chrono::milliseconds rendezvous_timeout = std::chrono::seconds(60);
  /// A rank that is not heard of for so long is lost: it was stopped, or its machine or network is gone. It is heard of
  /// from a thread of its own, however long a step takes.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(12);
  /// Called on another thread where a failure is known and this rank does not come to an end: its own thread has not
  /// heard of it, or waits for a device that waits for the lost rank. Is to end the process.
  std::function<void(const Failure& failure)> on_hang{};
};

/// The ranks of a run, by PyTorch's TCPStore, which rank 0 holds, and Gloo. All ranks make the same calls in the same
/// order, each on one thread. A call in which another rank is lost throws a UserError with the first failure's code and
/// reason, within some seconds.
class Ranks {
 public:
  /// Waits for all others. Throws UserError: kUsage where the port is in use or nobody listens there; kFailed where
  /// ranks do not come, with their numbers.
  explicit Ranks(const Launch& launch, const RanksOptions& options = {});
  /// Waits for the others to come here too, unless there was a failure.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const Launch& launch() const { return launch_; }
  int64_t rank() const { return launch_.rank; }
  int64_t world_size() const { return launch_.world_size; }

  /// What they tell each other. On a device after connect().
  Collectives& collectives();
  const Collectives& collectives() const;

  /// From now on each `count` consecutive ranks have parts of what they share, and what those at the same place in
  /// other groups have is the same. Before connect(). REQUIRES: that it divides their number.
  void set_group_size(int64_t count);

  /// From now on they add up tensors of this rank's device as well: by NCCL (distributed/nccl.h), on a virtual card by
  /// nothing. Takes memory of the card. Throws UserError (kFailed) where NCCL cannot be had.
  void connect(at::Device device);

  /// Tells the others that this rank ends, and why; the first one's word counts.
  void fail(ExitCode code, const std::string& reason);
  /// Whether rank 0 is lost, as far as is known.
  bool has_lost_rank0() const;

 private:
  class Group;

  Launch launch_;
  std::unique_ptr<Group> group_;
};

}  // namespace vlmtrain::distributed
