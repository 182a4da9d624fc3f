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
  /// io::Records::blocks().
  std::vector<int64_t> blocks = {};
};

/// A lane's samples in the order of one epoch. They are drawn in units: single samples, or packs.
struct EpochOrder {
  std::vector<int64_t> samples;  ///< indices in the data set
  std::vector<int64_t> ends;     ///< of the packs in `samples`; empty: each sample is a unit

  int64_t units() const { return ends.empty() ? std::ssize(samples) : std::ssize(ends); }
  /// Where the unit ends that begins at `position`.
  int64_t end_of_unit(int64_t position) const;
};

class EpochsMade;

/// The order in which a run draws its samples: of each lane and epoch a function of seed, lane and epoch. Nothing of it
/// changes; by any thread.
class DrawOrder {
 public:
  /// All of a data set as one lane.
  DrawOrder(int64_t samples, uint64_t seed);
  /// Each sample is in one lane at most. `sizes`: by index; of use to curriculum and packs alone. Of samples whose
  /// `is_packed` is 0 there are no packs; empty: all are packed. REQUIRES: what is packed fits into a pack.
  DrawOrder(std::vector<Lane> lanes, std::vector<ShareChange> shares, OrderSettings settings, int64_t samples,
            std::vector<SampleSize> sizes, std::vector<char> is_packed);

  int64_t lanes() const { return std::ssize(lanes_); }
  const Lane& lane(int64_t lane) const { return lanes_[static_cast<size_t>(lane)]; }
  /// The lane that a sample is in; -1: none.
  int64_t lane_of(int64_t sample) const { return lane_of_[static_cast<size_t>(sample)]; }
  int64_t samples() const { return std::ssize(lane_of_); }
  const LaneChooser& chooser() const { return chooser_; }
  const OrderSettings& settings() const { return settings_; }
  const std::vector<SampleSize>& sizes() const { return sizes_; }

  /// Made once for all who ask for a lane's newest epoch: packs take their time.
  std::shared_ptr<const EpochOrder> epoch(int64_t lane, int64_t epoch) const;
  /// Samples of a lane that are drawn in each of its epochs.
  int64_t samples_drawn(int64_t lane) const;

  /// Of the sizes that packs or a curriculum are made by; empty without.
  std::string fingerprint() const;

  /// Where a run begins.
  Cursor start() const;
  /// Throws UserError (kBadData) where `cursor` is of other lanes or behind their end. `dataset`: its name.
  void check(const Cursor& cursor, const std::string& dataset) const;

 private:
  EpochOrder made(int64_t lane, int64_t epoch) const;

  std::vector<Lane> lanes_;
  LaneChooser chooser_;
  OrderSettings settings_;
  std::vector<int32_t> lane_of_;
  std::vector<SampleSize> sizes_;
  std::vector<char> is_packed_;
  std::shared_ptr<EpochsMade> epochs_;
};

/// Goes through the units of a lane, epoch after epoch, without end.
class LaneWalk {
 public:
  /// `order` has to outlive it.
  LaneWalk(const DrawOrder& order, int64_t lane, Place start);

  struct Unit {
    Place begin;
    Place behind;
    std::span<const int64_t> samples;  ///< until the next call
  };
  Unit next();
  /// On average, in the epoch that is under way.
  double samples_of_unit() const;

 private:
  const DrawOrder* order_;
  int64_t lane_;
  Place place_;
  std::shared_ptr<const EpochOrder> epoch_;  // of place_
};

}  // namespace vlmtrain::data
