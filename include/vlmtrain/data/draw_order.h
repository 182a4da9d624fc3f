#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/data/lanes.h"
#include "vlmtrain/data/order.h"
#include "vlmtrain/data/packing.h"

namespace vlmtrain::data {

/// What the first epoch of each lane begins with.
enum class Curriculum : uint8_t {
  kNone,
  kLength,  ///< short samples first, by tokens
  kImages,  ///< samples of few images first
};

struct OrderSettings {
  uint64_t seed = 0;
  Curriculum curriculum = Curriculum::kNone;
  std::optional<PackLimits> packs = std::nullopt;
  /// io::Records::block_starts().
  std::vector<int64_t> block_starts = {};
};

/// A lane's samples in the order of one epoch. They are drawn in units: single samples, or packs.
struct EpochOrder {
  std::vector<int64_t> samples;  ///< indices in the data set
  std::vector<int64_t> ends;     ///< of the packs in `samples`; empty: each sample is a unit

  int64_t units() const { return ends.empty() ? std::ssize(samples) : std::ssize(ends); }
  /// Where the unit ends that begins at `position`.
  int64_t find_unit_end(int64_t position) const;
};

class EpochOrderCache;

/// The order in which a run draws its samples: of each lane and epoch a function of seed, lane and epoch. Nothing of it
/// changes; by any thread.
class SampleOrder {
 public:
  /// All of a data set as one lane.
  SampleOrder(int64_t samples, uint64_t seed);
  /// Each sample is in one lane at most. `sizes`: by index; of use to curriculum and packs alone. Of samples whose
  /// `is_packed` is 0 there are no packs; empty: all are packed. REQUIRES: what is packed fits into a pack.
  SampleOrder(std::vector<MixtureSource> sources, std::vector<ShareChange> shares, OrderSettings settings,
              int64_t samples, std::vector<SampleSize> sizes, std::vector<char> is_packed);

  int64_t num_sources() const { return std::ssize(sources_); }
  const MixtureSource& source(int64_t source) const { return sources_[static_cast<size_t>(source)]; }
  /// The lane that a sample is in; -1: none.
  int64_t find_source(int64_t sample) const { return source_by_sample_[static_cast<size_t>(sample)]; }
  int64_t samples() const { return std::ssize(source_by_sample_); }
  const MixtureSampler& mixture_sampler() const { return mixture_sampler_; }
  const OrderSettings& settings() const { return settings_; }
  const std::vector<SampleSize>& sizes() const { return sizes_; }

  /// Made once for all who ask for a lane's newest epoch: packs take their time.
  std::shared_ptr<const EpochOrder> epoch(int64_t source, int64_t epoch) const;
  /// Samples of a lane that are drawn in each of its epochs.
  int64_t count_epoch_samples(int64_t source) const;

  /// Of the sizes that packs or a curriculum are made by; empty without.
  std::string fingerprint() const;

  /// Where a run begins.
  Cursor start() const;
  /// Throws UserError (kBadData) where `cursor` is of other lanes or behind their end. `dataset`: its name.
  void check(const Cursor& cursor, const std::string& dataset) const;

 private:
  EpochOrder make_epoch_order(int64_t source, int64_t epoch) const;

  std::vector<MixtureSource> sources_;
  MixtureSampler mixture_sampler_;
  OrderSettings settings_;
  std::vector<int32_t> source_by_sample_;
  std::vector<SampleSize> sizes_;
  std::vector<char> is_packed_;
  std::shared_ptr<EpochOrderCache> epochs_;
};

/// Goes through the units of a lane, epoch after epoch, without end.
class SourceIterator {
 public:
  /// `order` has to outlive it.
  SourceIterator(const SampleOrder& order, int64_t source, EpochPosition start);

  struct Unit {
    EpochPosition begin;
    EpochPosition end;
    std::span<const int64_t> samples;  ///< until the next call
  };
  Unit next();
  /// On average, in the epoch that is under way.
  double mean_samples_per_unit() const;

 private:
  const SampleOrder* order_;
  int64_t source_;
  EpochPosition position_;
  std::shared_ptr<const EpochOrder> epoch_;  // of place_
};

}  // namespace vlmtrain::data
