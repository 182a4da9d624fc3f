#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/index/bad_samples.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// A drawn unit: a single sample, or a pack of samples.
struct BatchUnit {
  int64_t source = 0;
  EpochPosition begin;
  EpochPosition end;
  bool is_replaced = false;  ///< its samples left the batch, and another unit replaces it
  int64_t rank = 0;          ///< the rank that processes its samples
};

/// A sample of the batch that another rank processes and trains on.
struct RemoteSample {
  int64_t index = 0;
  uint64_t seed = 0;
  std::optional<ShrinkInfo> shrunk{};
  std::vector<io::Notice> notices{};  ///< only kinds with Ledger::is_counted_on_use()
};

/// The samples of one optimizer step. Either exactly the global batch size, or the number of units
/// whose tokens come nearest to LoaderSettings::global_batch_tokens.
struct GlobalBatch {
  std::vector<Sample> samples;               ///< processed by this rank
  std::vector<RemoteSample> remote_samples;  ///< processed by other ranks
  int64_t label_tokens = 0;                  ///< of `samples`
  std::vector<BatchUnit> units;              ///< in the order of the draws
  std::map<uint64_t, int64_t> unit_by_seed;  ///< index in `units` by the seed of a sample
  Cursor start;                              ///< before this step
  Cursor next;                               ///< before the next step
  double wait_seconds = 0;                   ///< time the caller waited for loader threads
};

/// The share of one rank in each batch: every `world_size`th unit.
struct LoaderShard {
  int64_t rank = 0;
  int64_t world_size = 1;
  /// Returns the messages of all ranks, by rank. A collective: all ranks call it equally often.
  std::function<std::vector<std::string>(const std::string& message)> all_gather_strings{};
};

/// The settings of a Loader.
struct LoaderSettings {
  int64_t global_batch_size = 1;  ///< units: samples, or packs
  /// Target number of tokens of a batch, which then has 1 to global_batch_size units. The last unit
  /// goes into the batch only if that brings it nearer to the target. Nothing: exactly
  /// global_batch_size units.
  std::optional<int64_t> global_batch_tokens = std::nullopt;
  int64_t num_workers = 1;       ///< threads, >= 1
  int64_t prefetch_samples = 0;  ///< processed samples kept ready; 0: two global batches
  int64_t prefetch_bytes = 0;    ///< maximum host memory of these samples; 0: no limit
  BadSamplePolicy on_bad_sample = BadSamplePolicy::kFail;
  LoaderShard shard{};  ///< world_size > 1 excludes global_batch_tokens
  /// The run was started by a program version that ignored record keys which are now rejected.
  bool began_ignoring_keys = false;
};

/// An endless source of global batches in the order of a SampleOrder. Batches cross epoch
/// boundaries, so that each has the full global batch size. Dropped samples are skipped and
/// replaced by the next sample of their mixture source: those that the ledger has as dropped and,
/// with kSkip, those that turn out to be bad. A sample is bad if make_sample() throws a UserError
/// with kBadData. Worker threads process samples ahead of the draws; the batches do not depend on
/// the number of threads. Not thread-safe.
///
/// Ranks that draw with equal orders and ledgers get the same batches, each processing its share.
/// If a sample turns out to be bad on one rank, all ranks replace it.
class Loader {
 public:
  /// `records`, `processor`, `order` and `ledger` must outlive the loader. REQUIRES: order and
  /// ledger have as many samples as there are records. Throws UserError (kBadData) if there are no
  /// records or if `start` does not belong to the order.
  Loader(const io::Records& records, const SampleProcessor& processor, const SampleOrder& order,
         LoaderSettings settings, Cursor start, Ledger& ledger);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Draws the next batch and writes its bad samples to the ledger. Used samples are marked by the
  /// caller, who may draw batches before training on them. Throws UserError (kBadData) if a sample
  /// is bad and the policy is kFail, or if an epoch has no usable sample; rethrows other exceptions
  /// of the processor. After an exception the loader can only be destroyed.
  GlobalBatch next();

  /// Draws replacements, from the same sources, for the units that a batch lost. A collective of
  /// all ranks. REQUIRES: batches drawn after `batch` were put back. Throws as next() does.
  void refill(GlobalBatch& batch);

  /// Returns the last drawn batch to the loader; its samples are drawn again in the same order,
  /// except those that are dropped by then. For several batches, call it in reverse order of the
  /// draws.
  void put_back(GlobalBatch batch);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlmtrain::data
