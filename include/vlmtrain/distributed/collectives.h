#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace vlmtrain::distributed {

/// Bytes and calls of some kind.
struct Traffic {
  int64_t bytes = 0;  ///< of all ranks' parts together
  int64_t calls = 0;
};

/// What ranks tell each other, over c10d's backends: Gloo, NCCL, or one that moves nothing. All ranks make the same
/// calls in the same order, each on one thread.
class Collectives {
 public:
  /// One for tensors of the host, and for words; one for those of the device, where that is another.
  struct Backends;
  /// Called where a call fails, with what it threw. Is to throw what the caller is told.
  using OnBroken = std::function<void(const std::exception& error)>;

  explicit Collectives(const Backends& backends, OnBroken on_broken = {});
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  int64_t world_size() const;
  /// That share what begin_sum_of_parts() and begin_gather() are about.
  int64_t group_size() const;

  /// From now on parts are those of a group of ranks instead of all: `group` joins its members, `copies` those that are
  /// at the same place in other groups.
  void share_in_groups(Backends group, Backends copies);
  /// From now on tensors of the device can be added up too; the last two, where there are groups.
  void connect_device(Backends all, Backends group, Backends copies);

  /// Adds the values of all ranks up in place, meanwhile. REQUIRES: contiguous, of the same size in all, on the host or
  /// on the device that is connected; untouched until finish_sums().
  void begin_sum(const at::Tensor& values);
  /// The same of the n ranks of a group and n equal parts, of which the r-th rank gets its r-th: a reduce-scatter in
  /// place, after which the others are anything. REQUIRES: as begin_sum(), and as many elements as n divides.
  void begin_sum_of_parts(const at::Tensor& values);
  /// The same as begin_sum(), of the ranks of a group; of those at the same place of all groups.
  void begin_sum_in_group(const at::Tensor& values);
  void begin_sum_of_copies(const at::Tensor& values);
  /// Sums on the host are there; those on the device are for whoever uses them on the current stream.
  void finish_sums();

  /// The r-th of n equal parts of each rank reaches all others of its group, meanwhile: an all-gather in place.
  /// REQUIRES: as begin_sum_of_parts(); untouched until finish_gather() was called for the ticket that comes back.
  [[nodiscard]] int64_t begin_gather(const at::Tensor& parts);
  /// The same of parts that are elsewhere: `all` becomes the `own` of the group's ranks, one behind the other.
  [[nodiscard]] int64_t begin_gather(const at::Tensor& all, const at::Tensor& own);
  /// It is there, as with finish_sums(). Once for each.
  void finish_gather(int64_t ticket);

  /// Whether what finish_sums() was called for is there on the device too; waits for it up to `patience`. It never is
  /// where a rank was lost meanwhile.
  bool are_sums_done(std::chrono::milliseconds patience);

  /// What each rank says, by rank.
  std::vector<std::string> each(const std::string& own);

  /// That this rank has waited in finish_sums() and finish_gather() for what was not there yet, or its device has, as
  /// far as is known. Who is slowest waits least.
  double waited_seconds();

  /// Of sums of all (and of those of copies), of sums of parts and of gathered parts.
  const Traffic& summed() const { return summed_; }
  const Traffic& summed_in_parts() const { return summed_in_parts_; }
  const Traffic& gathered() const { return gathered_; }

 private:
  class UnderWay;
  template <class Act>
  void guarded(const Act& act);
  void check_place(const at::Tensor& values) const;
  void check_parts(const at::Tensor& values) const;

  std::unique_ptr<UnderWay> under_way_;
  OnBroken on_broken_;
  Traffic summed_, summed_in_parts_, gathered_;
};

}  // namespace vlmtrain::distributed
