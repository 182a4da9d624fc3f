#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/bad_samples.h"
#include "vlmtrain/data/draw_order.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// What was drawn at once: a sample, or a pack of them.
struct BatchUnit {
  int64_t source = 0;
  EpochPosition begin;
  EpochPosition end;
  bool is_replaced = false;  ///< its samples left the batch, and another unit came for it
  int64_t rank = 0;          ///< of the process that makes its samples
};

/// One of a batch that another process makes and trains on.
struct RemoteSample {
  int64_t index = 0;
  uint64_t seed = 0;
  std::optional<ShrinkInfo> shrunk{};
  std::vector<io::Notice> notices{};  ///< of kinds that are counted as samples are used
};

/// The samples of one optimizer step: exactly the global batch, or so many that their tokens come nearest to the goal.
struct GlobalBatch {
  std::vector<Sample> samples;               ///< that this process has made
  std::vector<RemoteSample> remote_samples;  ///< the others
  int64_t label_tokens = 0;                  ///< of this process's samples
  std::vector<BatchUnit> units;              ///< in the order in which they were drawn
  std::map<uint64_t, int64_t> unit_by_seed;  ///< of the samples, by their seed
  Cursor start;                              ///< where this step was drawn
  Cursor next;                               ///< where the following step goes on
  double wait_seconds = 0;                   ///< how long the caller waited for the loader threads
};

/// What of each batch this process makes, where several train on it together: of its units every `world_size`th.
struct LoaderShard {
  int64_t rank = 0;
  int64_t world_size = 1;
  /// What each process says, by rank; called as often in all of them.
  std::function<std::vector<std::string>(const std::string& message)> all_gather_strings{};
};

struct LoaderSettings {
  int64_t global_batch_size = 1;  ///< units: samples, or packs
  /// A batch takes units until it has so many tokens; the last one is left to the next batch if this one is nearer to
  /// them without it. At least one unit, at most global_batch_size. Nothing: exactly global_batch_size units.
  std::optional<int64_t> global_batch_tokens = std::nullopt;
  int64_t num_workers = 1;       ///< threads that decode ahead, >= 1
  int64_t prefetch_samples = 0;  ///< processed samples kept ready; 0: two global batches
  int64_t prefetch_bytes = 0;    ///< most that these samples may take of the host's memory; 0: no bound
  BadSamplePolicy on_bad_sample = BadSamplePolicy::kFail;
  LoaderShard shard{};  ///< not together with global_batch_tokens
  bool began_ignoring_keys =
      false;  ///< by the version that the run began with, which passed over keys that are refused
};

/// Draws global batches for ever, in the order that a SampleOrder says: of which lane a unit is, its shares tell. A
/// batch that an epoch's end cuts goes on with the next epoch, so that each has the full global batch size. A sample
/// that is dropped is passed over: the next one of its lane takes its place. Dropped are those that the ledger says,
/// whether their files have been mended since or not, and with kSkip those that turn out to be bad. Loader
/// threads decode ahead of the caller; the samples and their order do not depend on the number of threads. A sample is
/// bad if make_sample throws a UserError with kBadData. For one caller's thread.
///
/// Several processes that draw with the same order and ledger have the same batches, of which each makes its share; one
/// whose sample is bad tells the others, and all of them replace it.
class Loader {
 public:
  /// `records`, `processor`, `order` and `ledger` (of as many samples as there are records) must outlive the loader.
  /// Throws UserError (kBadData) if there are no records or if `start` is not of this order.
  Loader(const io::Records& records, const SampleProcessor& processor, const SampleOrder& order,
         LoaderSettings settings, Cursor start, Ledger& ledger);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The ledger learns of bad samples here; that samples were used is for the caller to enter, who may draw batches
  /// before they are trained on. Throws UserError (kBadData) if a sample is bad and the policy is kFail, or if an epoch
  /// holds no usable sample; rethrows any other exception of the processor as it is. After a throw the loader can only
  /// be destroyed.
  GlobalBatch next();

  /// Adds to a batch that lost units, in all processes, as many as it lacks, of the same lanes. Between next() and
  /// here, batches that were drawn after it are to be put back. Errors as next().
  void refill(GlobalBatch& batch);

  /// The samples of the batch that was drawn last come again, in their order, but for those that are dropped by then.
  /// Several batches: the last one first.
  void put_back(GlobalBatch batch);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlmtrain::data
