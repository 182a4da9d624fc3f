#include "vlmtrain/data/draw_order.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {

/// The newest epoch of each lane that was asked for.
class EpochsMade {
 public:
  explicit EpochsMade(size_t lanes) : newest_(lanes) {}

  template <class Make>
  std::shared_ptr<const EpochOrder> of(int64_t lane, int64_t epoch, const Make& make) {
    const std::lock_guard lock(mutex_);
    Entry& entry = newest_.at(static_cast<size_t>(lane));
    if (entry.order == nullptr || entry.epoch != epoch) entry = {epoch, std::make_shared<const EpochOrder>(make())};
    return entry.order;
  }

 private:
  struct Entry {
    int64_t epoch = 0;
    std::shared_ptr<const EpochOrder> order;
  };
  std::mutex mutex_;
  std::vector<Entry> newest_;
};

namespace {

/// Into which a curriculum divides an epoch; within one the order is random.
constexpr int64_t kStages = 16;

Lane whole(int64_t samples) {
  Lane lane{.name = {}, .samples = std::vector<int64_t>(static_cast<size_t>(samples))};
  std::iota(lane.samples.begin(), lane.samples.end(), int64_t{0});
  return lane;
}

/// The first places of the blocks among a lane's samples.
std::vector<int64_t> blocks_in(const std::vector<int64_t>& blocks, const std::vector<int64_t>& samples) {
  std::vector<int64_t> own;
  for (size_t place = 0, block = 0; place < samples.size(); ++place) {
    const bool is_first = own.empty() || (block < blocks.size() && samples[place] >= blocks[block]);
    while (block < blocks.size() && blocks[block] <= samples[place]) ++block;
    if (is_first) own.push_back(static_cast<int64_t>(place));
  }
  return own;
}

/// `order` in stages of ascending `key`, whose samples stay in their order.
template <class Key>
std::vector<int64_t> in_stages(std::vector<int64_t> order, const Key& key) {
  std::vector<size_t> rank(order.size());
  std::iota(rank.begin(), rank.end(), size_t{0});
  std::ranges::stable_sort(rank, [&](size_t left, size_t right) { return key(order[left]) < key(order[right]); });
  const size_t of_stage = (order.size() + kStages - 1) / kStages;
  std::vector<int64_t> staged;
  staged.reserve(order.size());
  for (size_t first = 0; first < rank.size(); first += of_stage) {
    const auto end = std::min(first + of_stage, rank.size());
    std::sort(rank.begin() + static_cast<std::ptrdiff_t>(first), rank.begin() + static_cast<std::ptrdiff_t>(end));
    for (size_t i = first; i < end; ++i) staged.push_back(order[rank[i]]);
  }
  return staged;
}

}  // namespace

int64_t EpochOrder::end_of_unit(int64_t position) const {
  if (ends.empty()) return position + 1;
  return *std::ranges::upper_bound(ends, position);
}

DrawOrder::DrawOrder(int64_t samples, uint64_t seed)
    : DrawOrder({whole(samples)}, {{.from_batch = 0, .shares = {1}}}, {.seed = seed}, samples, {}, {}) {}

DrawOrder::DrawOrder(std::vector<Lane> lanes, std::vector<ShareChange> shares, OrderSettings settings, int64_t samples,
                     std::vector<SampleSize> sizes, std::vector<char> is_packed)
    : lanes_(std::move(lanes)),
      chooser_(std::move(shares)),
      settings_(std::move(settings)),
      lane_of_(static_cast<size_t>(samples), -1),
      sizes_(std::move(sizes)),
      is_packed_(std::move(is_packed)),
      epochs_(std::make_shared<EpochsMade>(lanes_.size())) {
  VLMTRAIN_CHECK(chooser_.lanes() == std::ssize(lanes_), "{} lanes and shares of {}", lanes_.size(), chooser_.lanes());
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    for (const int64_t sample : lanes_[lane].samples) {
      int32_t& own = lane_of_.at(static_cast<size_t>(sample));
      VLMTRAIN_CHECK(own == -1, "sample {} is in two lanes", sample);
      own = static_cast<int32_t>(lane);
    }
  }
}

std::shared_ptr<const EpochOrder> DrawOrder::epoch(int64_t number, int64_t epoch) const {
  return epochs_->of(number, epoch, [&] { return made(number, epoch); });
}

EpochOrder DrawOrder::made(int64_t number, int64_t epoch) const {
  const auto& samples = lane(number).samples;
  const auto count = std::ssize(samples);
  auto order = settings_.blocks.empty()
                   ? epoch_order(count, settings_.seed, epoch, number)
                   : epoch_order_by_blocks(count, blocks_in(settings_.blocks, samples), settings_.seed, epoch, number);
  for (int64_t& place : order) place = samples[static_cast<size_t>(place)];
  const auto size_of = [this](int64_t sample) -> const SampleSize& { return sizes_[static_cast<size_t>(sample)]; };
  if (epoch == 0 && settings_.curriculum == Curriculum::kLength) {
    order = in_stages(std::move(order), [&](int64_t sample) { return size_of(sample).tokens; });
  }
  if (epoch == 0 && settings_.curriculum == Curriculum::kImages) {
    order = in_stages(std::move(order), [&](int64_t sample) { return size_of(sample).images; });
  }
  if (!settings_.packs) return {.samples = std::move(order), .ends = {}};
  if (!is_packed_.empty()) {
    std::erase_if(order, [this](int64_t sample) { return is_packed_[static_cast<size_t>(sample)] == 0; });
  }
  const uint64_t seed =
      stream_seed(settings_.seed, "packing", {static_cast<uint64_t>(number), static_cast<uint64_t>(epoch)});
  auto packs = pack(order, sizes_, *settings_.packs, seed);
  return {.samples = std::move(packs.samples), .ends = std::move(packs.ends)};
}

int64_t DrawOrder::samples_drawn(int64_t number) const {
  const auto& samples = lane(number).samples;
  if (!settings_.packs || is_packed_.empty()) return std::ssize(samples);
  return std::ranges::count_if(samples,
                               [this](int64_t sample) { return is_packed_[static_cast<size_t>(sample)] != 0; });
}

std::string DrawOrder::fingerprint() const {
  if (!settings_.packs && settings_.curriculum == Curriculum::kNone) return {};
  ContentHash hash;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    hash.add(static_cast<uint64_t>(sizes_[i].tokens)).add(static_cast<uint64_t>(sizes_[i].images));
    hash.add(static_cast<uint64_t>(sizes_[i].tiles)).add(static_cast<uint64_t>(is_packed_.empty() ? 1 : is_packed_[i]));
  }
  return hash.text();
}

Cursor DrawOrder::start() const {
  return {.lanes = std::vector<Place>(lanes_.size()), .due = std::vector<double>(lanes_.size()), .batches = 0};
}

void DrawOrder::check(const Cursor& cursor, const std::string& dataset) const {
  if (cursor.lanes.size() != lanes_.size() || cursor.due.size() != lanes_.size()) {
    throw data_error(
        "{}: the run to resume drew from {} sources or tasks, and now there are {}; resume with the ones that "
        "it was started with",
        dataset, cursor.lanes.size(), lanes_.size());
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const int64_t position = cursor.lanes[lane].position;
    const int64_t drawn = samples_drawn(static_cast<int64_t>(lane));
    if (position < drawn) continue;
    throw data_error(
        "{}: the run to resume goes on at sample {} of an epoch, but {} {}; resume with the file that it "
        "was started with",
        dataset, position, lanes_.size() == 1 ? "the file holds" : lanes_[lane].name + " holds", drawn);
  }
}

LaneWalk::LaneWalk(const DrawOrder& order, int64_t lane, Place start)
    : order_(&order), lane_(lane), place_(start), epoch_(order.epoch(lane, start.epoch)) {
  VLMTRAIN_CHECK(start.epoch >= 0 && start.position >= 0 && start.position < std::ssize(epoch_->samples),
                 "position {} of epoch {} with {} samples", start.position, start.epoch, epoch_->samples.size());
}

double LaneWalk::samples_of_unit() const {
  return static_cast<double>(epoch_->samples.size()) / static_cast<double>(std::max<int64_t>(1, epoch_->units()));
}

LaneWalk::Unit LaneWalk::next() {
  if (place_.position == std::ssize(epoch_->samples)) {
    place_ = {.epoch = place_.epoch + 1, .position = 0};
    epoch_ = order_->epoch(lane_, place_.epoch);
  }
  const Place begin = place_;
  place_.position = epoch_->end_of_unit(begin.position);
  Unit unit{.begin = begin,
            .behind = place_,
            .samples = std::span(epoch_->samples)
                           .subspan(static_cast<size_t>(begin.position),
                                    static_cast<size_t>(place_.position - begin.position))};
  if (place_.position == std::ssize(epoch_->samples)) unit.behind = {.epoch = begin.epoch + 1, .position = 0};
  return unit;
}

}  // namespace vlmtrain::data
