#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// A drawn unit: a single sample, or a pack of samples.
struct BatchUnit {
  int64_t source = 0;        ///< mixture source
  EpochPosition begin;       ///< of its first sample, in the order of `source`
  EpochPosition end;         ///< after its last sample
  bool is_replaced = false;  ///< its samples were dropped, and another unit replaces it
  int64_t rank = 0;          ///< the rank that processes its samples
};

/// A sample of the batch that another rank processes and trains on.
struct RemoteSample {
  int64_t index = 0;  ///< in the data set
  uint64_t seed = 0;  ///< see Sample::seed
  std::optional<ShrinkInfo> shrink_info{};
  std::vector<io::Notice> notices{};  ///< only kinds with Ledger::is_counted_on_use()
};

/// The samples of one optimizer step. There are exactly as many units as the global batch size or,
/// with LoaderSettings::global_batch_tokens, as many as come nearest to that number of tokens.
struct GlobalBatch {
  std::vector<Sample> samples;               ///< processed by this rank
  std::vector<RemoteSample> remote_samples;  ///< processed by other ranks
  int64_t label_tokens = 0;                  ///< of `samples`
  std::vector<BatchUnit> units;              ///< in the order of the draws
  std::map<uint64_t, int64_t>
      unit_index_by_seed;   ///< index in `units` of the unit of a sample, by the seed of the sample
  Cursor start;             ///< position before this step
  Cursor next;              ///< position before the next step
  double wait_seconds = 0;  ///< time the caller waited for loader threads
};

/// The share of one rank in each batch: every `world_size`-th unit, starting at unit `rank`.
struct LoaderShard {
  int64_t rank = 0;
  int64_t world_size = 1;
  /// Returns the messages of all ranks, by rank. A collective, called equally often on all ranks.
  /// Not called for a single rank.
  std::function<std::vector<std::string>(const std::string& message)> all_gather_strings{};
};

/// The settings of a Loader.
struct LoaderSettings {
  int64_t global_batch_size = 1;  ///< in units: samples, or packs
  /// Target number of tokens of a batch, which then has 1 to global_batch_size units. The last unit
  /// joins the batch only if that brings the batch nearer to the target. If not set, a batch has
  /// exactly global_batch_size units.
  std::optional<int64_t> global_batch_tokens = std::nullopt;
  int64_t num_workers = 1;           ///< threads, >= 1
  int64_t max_prefetch_samples = 0;  ///< number of processed samples kept ready; 0 for two global batches
  int64_t prefetch_bytes = 0;        ///< maximum host memory of these samples; 0 for no limit
  BadSamplePolicy on_bad_sample = BadSamplePolicy::kFail;
  LoaderShard shard{};  ///< with several ranks, global_batch_tokens must not be set
  /// Whether a program version that ignored record keys, which are now rejected, started the run.
  /// Errors then explain it.
  bool earlier_version_ignored_keys = false;
};

/// An endless source of global batches in the order of a SampleOrder. Batches cross epoch
/// boundaries, so that each has the full global batch size. A dropped sample is skipped and
/// replaced by the next sample of its mixture source. Samples are dropped if the ledger lists them
/// as dropped and, with kSkip, if they are bad: if make_sample() throws a UserError with kBadData.
/// Worker threads process samples ahead of the draws; the batches do not depend on the number of
/// threads. Not thread-safe.
///
/// Ranks with equal orders and ledgers draw the same batches, and each processes its share. If a
/// sample is bad on one rank, all ranks replace it.
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

  /// Draws the next batch and writes its bad samples to the ledger. The caller marks samples as
  /// used, since it may draw batches before it trains on them. A collective of all ranks. Throws
  /// UserError (kBadData) if a sample is bad and the policy is kFail, or if an epoch has no usable
  /// sample; rethrows other exceptions of the processor. After an exception the loader can only be
  /// destroyed.
  GlobalBatch next();

  /// Draws replacements, from the same sources, for the units whose samples were removed from the
  /// batch. A collective of all ranks. REQUIRES: all batches drawn after `batch` were put back.
  /// Throws the same exceptions as next().
  void refill(GlobalBatch& batch);

  /// Returns the last drawn batch to the loader. Its samples are drawn again in the same order,
  /// except those that have been dropped in the meantime. To put back several batches, start with
  /// the one drawn last.
  void put_back(GlobalBatch batch);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vlmtrain::data
