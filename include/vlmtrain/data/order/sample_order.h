#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/data/order/draws.h"
#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::data {

/// The order of the first epoch. Later epochs are random.
enum class Curriculum : uint8_t {
  kNone,
  kLength,  ///< by tokens, ascending
  kImages,  ///< by number of media, ascending
};

/// The settings of a SampleOrder.
struct OrderSettings {
  uint64_t seed = 0;
  Curriculum curriculum = Curriculum::kNone;
  std::optional<PackLimits> pack_limits = std::nullopt;  ///< if set, units are packs; otherwise single samples
  std::vector<int64_t> block_starts = {};                ///< io::Records::block_starts()
};

/// The samples of a mixture source in the order of one epoch. They are drawn in units, which are
/// single samples or packs.
struct EpochOrder {
  std::vector<int64_t> samples;    ///< indices in the data set
  std::vector<int64_t> pack_ends;  ///< ends of the packs in `samples`; empty if each sample is a unit

  /// Returns the number of units.
  int64_t num_units() const { return pack_ends.empty() ? std::ssize(samples) : std::ssize(pack_ends); }
  /// Returns the end of the unit that begins at `position` in `samples`.
  int64_t find_unit_end(int64_t position) const;
};

class EpochOrderCache;

/// The order in which a run draws its samples. For each mixture source and epoch, it is a function
/// of the seed, source and epoch. Immutable and thread-safe.
class SampleOrder {
 public:
  /// Creates an order of all samples of a data set as one source.
  SampleOrder(int64_t samples, uint64_t seed);

  /// `samples` is the size of the data set. `sizes` has the sizes of all samples, by index; it may
  /// be empty without packs and curriculum. `is_packed` is 0 for samples that packs leave out; if
  /// it is empty, all samples are packed. REQUIRES: each sample is in at most one source; each
  /// packed sample fits into an empty pack.
  SampleOrder(std::vector<MixtureSource> sources, std::vector<SourceShares> shares, OrderSettings settings,
              int64_t samples, std::vector<SampleSize> sizes, std::vector<char> is_packed);

  int64_t num_sources() const { return std::ssize(sources_); }
  const MixtureSource& source(int64_t source) const { return sources_[static_cast<size_t>(source)]; }
  /// Returns the source of a sample, or -1 if no source has it.
  int64_t find_sample_source(int64_t sample) const { return source_by_sample_[static_cast<size_t>(sample)]; }
  int64_t num_samples() const { return std::ssize(source_by_sample_); }
  const MixtureSampler& mixture_sampler() const { return mixture_sampler_; }
  const OrderSettings& settings() const { return settings_; }
  const std::vector<SampleSize>& sample_sizes() const { return sample_sizes_; }

  /// Returns the order of an epoch. The latest one of each source is cached, since packing is
  /// expensive.
  std::shared_ptr<const EpochOrder> get_epoch_order(int64_t source, int64_t epoch) const;
  /// Returns the number of samples that each epoch of a source draws.
  int64_t count_epoch_samples(int64_t source) const;

  /// Returns a hash of the sizes that determine packs or the curriculum, as 16 hexadecimal digits;
  /// empty if the order has neither.
  std::string fingerprint() const;

  /// Returns the seed of the sample that is drawn at a position of a source.
  uint64_t compute_sample_seed(int64_t source, EpochPosition position) const;

  /// Returns the cursor at the start of a run.
  Cursor make_start_cursor() const;
  /// Throws UserError (kBadData) if `cursor` has another number of sources, or a position after the
  /// end of its source. `dataset` is the name of the data set for the message.
  void check_cursor(const Cursor& cursor, const std::string& dataset) const;

 private:
  /// Computes the order of an epoch: shuffles, sorts by the curriculum, and packs.
  EpochOrder make_epoch_order(int64_t source, int64_t epoch) const;

  std::vector<MixtureSource> sources_;
  MixtureSampler mixture_sampler_;
  OrderSettings settings_;
  std::vector<int32_t> source_by_sample_;
  std::vector<SampleSize> sample_sizes_;
  std::vector<char> is_packed_;
  std::shared_ptr<EpochOrderCache> epoch_order_cache_;
};

/// An endless iterator over the units of a mixture source, epoch after epoch.
class SourceIterator {
 public:
  /// `order` must outlive the iterator.
  SourceIterator(const SampleOrder& order, int64_t source, EpochPosition start);

  /// A single sample or a pack.
  struct Unit {
    EpochPosition begin;
    EpochPosition end;
    std::span<const int64_t> samples;  ///< valid until the next call of next()
  };
  /// Returns the next unit.
  Unit next();
  /// Returns the mean number of samples per unit in the current epoch.
  double compute_mean_samples_per_unit() const;

 private:
  const SampleOrder* order_;
  int64_t source_;
  EpochPosition position_;
  std::shared_ptr<const EpochOrder> epoch_order_;  // of position_.epoch
};

/// Returns the packs of the first epoch of all sources, source by source. REQUIRES:
/// settings().pack_limits is set.
PackedSamples collect_first_epoch_packs(const SampleOrder& order);

/// The sample shapes of a step: a list for each rank.
using ShapesByRank = std::vector<std::vector<SampleShape>>;

/// Returns the sample shapes of `count` steps that are evenly spaced over the first epoch. Samples
/// are drawn as in a run, with its shares, curriculum and packs: `units` units in each step, unit i
/// for rank i % ranks. Continues in the second epoch if the first has fewer steps. Skips samples of
/// unknown shape, as the loader skips bad samples, and steps without any other sample. REQUIRES:
/// units, count, ranks > 0.
std::vector<ShapesByRank> simulate_steps(const SampleOrder& order, const SampleShapes& shapes, int64_t units,
                                         int64_t count, int64_t ranks);

/// The sequence of samples that loader threads process ahead of the draws. As long as no sample is
/// dropped, it equals the sequence of the draws. A source whose dropped samples must be replaced
/// gets extra units.
class PrefetchQueue {
 public:
  /// `batch_units` is the number of units in a global batch. `order` must outlive the queue.
  PrefetchQueue(const SampleOrder& order, Cursor start, int64_t batch_units);

  /// A sample to process.
  struct QueuedSample {
    int64_t sample_index = 0;
    int64_t source = 0;
    EpochPosition position{};  ///< in the order of its source
    /// Expected index of its unit in the batch; nothing for an extra unit, whose rank is unknown.
    std::optional<int64_t> expected_unit_index{};
  };
  /// REQUIRES: one caller at a time.
  QueuedSample next();
  /// Requests one more unit of a source. Thread-safe.
  void request_extra_unit(int64_t source) { ++(*num_requested_units_by_source_)[static_cast<size_t>(source)]; }

 private:
  /// Returns the source of the next unit and sets expected_unit_index_.
  int64_t take_next_source();

  const SampleOrder* order_;
  Cursor cursor_;
  int64_t units_per_batch_;
  int64_t num_queued_batch_units_ = 0;  // in the current batch
  std::vector<SourceIterator> iterators_;
  // The current unit.
  std::vector<int64_t> current_unit_samples_;
  int64_t source_ = 0;
  EpochPosition current_unit_begin_{};
  std::optional<int64_t> expected_unit_index_;
  size_t num_returned_unit_samples_ = 0;  // by next()

  std::unique_ptr<std::vector<std::atomic<int64_t>>> num_requested_units_by_source_;  // extra units not yet taken
};

}  // namespace vlmtrain::data
