#include "vlmtrain/data/order/sample_order.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"

namespace vlmtrain::data {

namespace {

/// Stages of a curriculum, with a random order within each. With fewer stages, lengths are mixed
/// more; with many, a batch holds samples of a single length. Not tuned.
constexpr int64_t kNumCurriculumStages = 16;

MixtureSource make_all_samples_source(int64_t samples) {
  MixtureSource source{.name = {}, .samples = std::vector<int64_t>(static_cast<size_t>(samples))};
  std::iota(source.samples.begin(), source.samples.end(), int64_t{0});
  return source;
}

/// Returns the indices in `samples`, the samples of a source, at which the blocks of the data set
/// start.
std::vector<int64_t> find_source_block_starts(const std::vector<int64_t>& block_starts,
                                              const std::vector<int64_t>& samples) {
  std::vector<int64_t> starts;
  for (size_t i = 0, block = 0; i < samples.size(); ++i) {
    const bool is_block_start = starts.empty() || (block < block_starts.size() && samples[i] >= block_starts[block]);
    while (block < block_starts.size() && block_starts[block] <= samples[i]) ++block;
    if (is_block_start) starts.push_back(static_cast<int64_t>(i));
  }
  return starts;
}

/// Sorts `order` into stages of ascending `key(sample)`. Samples of a stage keep their order.
template <class Key>
std::vector<int64_t> sort_into_curriculum_stages(std::vector<int64_t> order, const Key& key) {
  std::vector<size_t> order_indices(order.size());
  std::iota(order_indices.begin(), order_indices.end(), size_t{0});
  std::ranges::stable_sort(order_indices, [&](size_t a, size_t b) { return key(order[a]) < key(order[b]); });
  const size_t stage_size = (order.size() + kNumCurriculumStages - 1) / kNumCurriculumStages;
  std::vector<int64_t> result;
  result.reserve(order.size());
  for (size_t first = 0; first < order_indices.size(); first += stage_size) {
    const auto end = std::min(first + stage_size, order_indices.size());
    std::sort(order_indices.begin() + static_cast<std::ptrdiff_t>(first),
              order_indices.begin() + static_cast<std::ptrdiff_t>(end));
    for (size_t i = first; i < end; ++i) result.push_back(order[order_indices[i]]);
  }
  return result;
}

/// A simulation of the steps of a run from its start.
class StepSimulator {
 public:
  StepSimulator(const SampleOrder& order, const SampleShapes& shapes)
      : order_(order), shapes_(shapes), cursor_(order.make_start_cursor()) {
    iterators_.reserve(static_cast<size_t>(order.num_sources()));
    for (int64_t source = 0; source < order.num_sources(); ++source) {
      iterators_.emplace_back(order, source, EpochPosition{});
      has_known_shapes_.push_back(std::ranges::any_of(order.get_epoch_order(source, 0)->samples,
                                                      [&](int64_t sample) { return shapes.is_known(sample); }));
    }
  }

  /// Returns the samples of the next step by rank.
  std::vector<std::vector<int64_t>> draw_step_samples(int64_t units, int64_t ranks) {
    std::vector<std::vector<int64_t>> samples_by_rank(static_cast<size_t>(ranks));
    for (int64_t unit = 0; unit < units; ++unit) {
      const auto source = static_cast<size_t>(order_.mixture_sampler().draw_source(cursor_));
      auto& samples = samples_by_rank[static_cast<size_t>(unit % ranks)];
      const size_t previous_size = samples.size();
      while (has_known_shapes_[source] && samples.size() == previous_size) {
        std::ranges::copy_if(iterators_[source].next().samples, std::back_inserter(samples),
                             [this](int64_t sample) { return shapes_.is_known(sample); });
      }
    }
    ++cursor_.num_batches;
    return samples_by_rank;
  }

 private:
  const SampleOrder& order_;
  const SampleShapes& shapes_;
  Cursor cursor_;
  std::vector<SourceIterator> iterators_;
  std::vector<bool> has_known_shapes_;  // by source
};

/// Returns the number of steps in an epoch of the samples with known shapes.
int64_t count_epoch_steps(const SampleOrder& order, const SampleShapes& shapes, int64_t units) {
  int64_t num_epoch_units = 0;
  for (int64_t source = 0; source < order.num_sources(); ++source)
    num_epoch_units += order.get_epoch_order(source, 0)->num_units();
  const double share =
      static_cast<double>(shapes.num_known_shapes()) / static_cast<double>(std::max<int64_t>(1, order.num_samples()));
  return static_cast<int64_t>(share * static_cast<double>(num_epoch_units)) / units;
}

}  // namespace

/// A cache of the latest epoch of each source. Thread-safe.
class EpochOrderCache {
 public:
  explicit EpochOrderCache(size_t sources) : latest_orders_(sources) {}

  template <class Make>
  std::shared_ptr<const EpochOrder> get_or_make(int64_t source, int64_t epoch, const Make& make) {
    const std::lock_guard lock(mutex_);
    Entry& entry = latest_orders_.at(static_cast<size_t>(source));
    if (entry.order == nullptr || entry.epoch != epoch) entry = {epoch, std::make_shared<const EpochOrder>(make())};
    return entry.order;
  }

 private:
  struct Entry {
    int64_t epoch = 0;
    std::shared_ptr<const EpochOrder> order;
  };
  std::mutex mutex_;
  std::vector<Entry> latest_orders_;
};

int64_t EpochOrder::find_unit_end(int64_t position) const {
  if (pack_ends.empty()) return position + 1;
  return *std::ranges::upper_bound(pack_ends, position);
}

SampleOrder::SampleOrder(int64_t samples, uint64_t seed)
    : SampleOrder({make_all_samples_source(samples)}, {{.first_batch = 0, .shares = {1}}}, {.seed = seed}, samples, {},
                  {}) {}

SampleOrder::SampleOrder(std::vector<MixtureSource> sources, std::vector<SourceShares> shares, OrderSettings settings,
                         int64_t samples, std::vector<SampleSize> sizes, std::vector<char> is_packed)
    : sources_(std::move(sources)),
      mixture_sampler_(std::move(shares)),
      settings_(std::move(settings)),
      source_by_sample_(static_cast<size_t>(samples), -1),
      sample_sizes_(std::move(sizes)),
      is_packed_(std::move(is_packed)),
      epoch_order_cache_(std::make_shared<EpochOrderCache>(sources_.size())) {
  VLMTRAIN_CHECK(mixture_sampler_.num_sources() == std::ssize(sources_), "{} sources, but shares of {}",
                 sources_.size(), mixture_sampler_.num_sources());
  for (size_t source = 0; source < sources_.size(); ++source) {
    for (const int64_t sample : sources_[source].samples) {
      int32_t& assigned_source = source_by_sample_.at(static_cast<size_t>(sample));
      VLMTRAIN_CHECK(assigned_source == -1, "sample {} is in two sources", sample);
      assigned_source = static_cast<int32_t>(source);
    }
  }
}

std::shared_ptr<const EpochOrder> SampleOrder::get_epoch_order(int64_t source_index, int64_t epoch) const {
  return epoch_order_cache_->get_or_make(source_index, epoch, [&] { return make_epoch_order(source_index, epoch); });
}

EpochOrder SampleOrder::make_epoch_order(int64_t source_index, int64_t epoch) const {
  const auto& samples = source(source_index).samples;
  const auto count = std::ssize(samples);
  auto order = settings_.block_starts.empty()
                   ? shuffle_epoch(count, settings_.seed, epoch, source_index)
                   : shuffle_epoch_by_blocks(count, find_source_block_starts(settings_.block_starts, samples),
                                             settings_.seed, epoch, source_index);
  for (int64_t& index : order) index = samples[static_cast<size_t>(index)];
  const auto get_sample_size = [this](int64_t sample) -> const SampleSize& {
    return sample_sizes_[static_cast<size_t>(sample)];
  };
  if (epoch == 0 && settings_.curriculum == Curriculum::kLength) {
    order =
        sort_into_curriculum_stages(std::move(order), [&](int64_t sample) { return get_sample_size(sample).tokens; });
  }
  if (epoch == 0 && settings_.curriculum == Curriculum::kImages) {
    order = sort_into_curriculum_stages(std::move(order),
                                        [&](int64_t sample) { return get_sample_size(sample).num_media; });
  }
  if (!settings_.pack_limits) return {.samples = std::move(order), .pack_ends = {}};
  if (!is_packed_.empty()) {
    std::erase_if(order, [this](int64_t sample) { return is_packed_[static_cast<size_t>(sample)] == 0; });
  }
  const uint64_t seed = derive_stream_seed(settings_.seed, "packing",
                                           {static_cast<uint64_t>(source_index), static_cast<uint64_t>(epoch)});
  auto packs = make_packs(order, sample_sizes_, *settings_.pack_limits, seed);
  return {.samples = std::move(packs.samples), .pack_ends = std::move(packs.pack_ends)};
}

int64_t SampleOrder::count_epoch_samples(int64_t source_index) const {
  const auto& samples = source(source_index).samples;
  if (!settings_.pack_limits || is_packed_.empty()) return std::ssize(samples);
  return std::ranges::count_if(samples,
                               [this](int64_t sample) { return is_packed_[static_cast<size_t>(sample)] != 0; });
}

std::string SampleOrder::fingerprint() const {
  if (!settings_.pack_limits && settings_.curriculum == Curriculum::kNone) return {};
  ContentHash hash;
  for (size_t i = 0; i < sample_sizes_.size(); ++i) {
    hash.add(static_cast<uint64_t>(sample_sizes_[i].tokens)).add(static_cast<uint64_t>(sample_sizes_[i].num_media));
    hash.add(static_cast<uint64_t>(sample_sizes_[i].tiles))
        .add(static_cast<uint64_t>(is_packed_.empty() ? 1 : is_packed_[i]));
  }
  return hash.to_hex();
}

uint64_t SampleOrder::compute_sample_seed(int64_t source, EpochPosition position) const {
  const auto epoch = static_cast<uint64_t>(position.epoch), offset = static_cast<uint64_t>(position.offset);
  // Source 0 has the same seeds as a data set without mixture, so that runs of earlier versions
  // resume with the same samples.
  if (source == 0) return derive_stream_seed(settings_.seed, "sample", {epoch, offset});
  return derive_stream_seed(settings_.seed, "sample", {epoch, offset, static_cast<uint64_t>(source)});
}

Cursor SampleOrder::make_start_cursor() const {
  return {.sources = std::vector<EpochPosition>(sources_.size()),
          .source_deficits = std::vector<double>(sources_.size()),
          .num_batches = 0};
}

void SampleOrder::check_cursor(const Cursor& cursor, const std::string& dataset) const {
  if (cursor.sources.size() != sources_.size() || cursor.source_deficits.size() != sources_.size()) {
    throw data_error(
        "{}: the checkpoint has {} sources or tasks, but the data has {}; resume with the sources and tasks that the "
        "run started with",
        dataset, cursor.sources.size(), sources_.size());
  }
  for (size_t source = 0; source < sources_.size(); ++source) {
    const int64_t offset = cursor.sources[source].offset;
    const int64_t num_epoch_samples = count_epoch_samples(static_cast<int64_t>(source));
    if (offset < num_epoch_samples) continue;
    throw data_error(
        "{}: the checkpoint continues at sample {} of an epoch, but {} {}; resume with the file that the run started "
        "with",
        dataset, offset, sources_.size() == 1 ? "the file has" : sources_[source].name + " has", num_epoch_samples);
  }
}

SourceIterator::SourceIterator(const SampleOrder& order, int64_t source, EpochPosition start)
    : order_(&order), source_(source), position_(start), epoch_order_(order.get_epoch_order(source, start.epoch)) {
  VLMTRAIN_CHECK(start.epoch >= 0 && start.offset >= 0 && start.offset < std::ssize(epoch_order_->samples),
                 "position {} of epoch {} with {} samples", start.offset, start.epoch, epoch_order_->samples.size());
}

double SourceIterator::compute_mean_samples_per_unit() const {
  return static_cast<double>(epoch_order_->samples.size()) /
         static_cast<double>(std::max<int64_t>(1, epoch_order_->num_units()));
}

SourceIterator::Unit SourceIterator::next() {
  if (position_.offset == std::ssize(epoch_order_->samples)) {
    position_ = {.epoch = position_.epoch + 1, .offset = 0};
    epoch_order_ = order_->get_epoch_order(source_, position_.epoch);
  }
  const EpochPosition begin = position_;
  position_.offset = epoch_order_->find_unit_end(begin.offset);
  Unit unit{
      .begin = begin,
      .end = position_,
      .samples = std::span(epoch_order_->samples)
                     .subspan(static_cast<size_t>(begin.offset), static_cast<size_t>(position_.offset - begin.offset))};
  if (position_.offset == std::ssize(epoch_order_->samples)) unit.end = {.epoch = begin.epoch + 1, .offset = 0};
  return unit;
}

PackedSamples collect_first_epoch_packs(const SampleOrder& order) {
  PackedSamples packs;
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    const auto epoch = order.get_epoch_order(source, 0);
    const int64_t sample_offset = std::ssize(packs.samples);
    for (const int64_t end : epoch->pack_ends) packs.pack_ends.push_back(sample_offset + end);
    packs.samples.insert(packs.samples.end(), epoch->samples.begin(), epoch->samples.end());
  }
  return packs;
}

std::vector<ShapesByRank> simulate_steps(const SampleOrder& order, const SampleShapes& shapes, int64_t units,
                                         int64_t count, int64_t ranks) {
  VLMTRAIN_CHECK(units > 0 && count > 0 && ranks > 0, "{} steps of {} units of {} ranks", count, units, ranks);
  StepSimulator simulator(order, shapes);
  const int64_t total_steps = std::max(count, count_epoch_steps(order, shapes, units));
  std::vector<ShapesByRank> steps;
  for (int64_t step_index = 0, num_selected = 0; step_index < total_steps; ++step_index) {
    const auto samples_by_rank = simulator.draw_step_samples(units, ranks);
    if (step_index < num_selected * total_steps / count) continue;
    ++num_selected;
    if (std::ranges::all_of(samples_by_rank, &std::vector<int64_t>::empty)) continue;
    auto& shapes_by_rank = steps.emplace_back();
    for (const auto& rank_samples : samples_by_rank) {
      auto& rank_shapes = shapes_by_rank.emplace_back();
      for (const int64_t sample : rank_samples) rank_shapes.push_back(shapes.at(sample));
    }
  }
  return steps;
}

PrefetchQueue::PrefetchQueue(const SampleOrder& order, Cursor start, int64_t batch_units)
    : order_(&order),
      cursor_(std::move(start)),
      units_per_batch_(batch_units),
      num_requested_units_by_source_(
          std::make_unique<std::vector<std::atomic<int64_t>>>(static_cast<size_t>(order.num_sources()))) {
  iterators_.reserve(cursor_.sources.size());
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    iterators_.emplace_back(order, source, cursor_.sources[static_cast<size_t>(source)]);
  }
}

PrefetchQueue::QueuedSample PrefetchQueue::next() {
  if (num_returned_unit_samples_ == current_unit_samples_.size()) {
    source_ = take_next_source();
    const SourceIterator::Unit unit = iterators_[static_cast<size_t>(source_)].next();
    current_unit_samples_.assign(unit.samples.begin(), unit.samples.end());
    current_unit_begin_ = unit.begin;
    num_returned_unit_samples_ = 0;
  }
  EpochPosition position = current_unit_begin_;
  position.offset += static_cast<int64_t>(num_returned_unit_samples_);
  return {.sample_index = current_unit_samples_[num_returned_unit_samples_++],
          .source = source_,
          .position = position,
          .expected_unit_index = expected_unit_index_};
}

int64_t PrefetchQueue::take_next_source() {
  for (size_t source = 0; source < num_requested_units_by_source_->size(); ++source) {
    std::atomic<int64_t>& num_extra_units = (*num_requested_units_by_source_)[source];
    if (num_extra_units == 0) continue;
    --num_extra_units;
    expected_unit_index_.reset();
    return static_cast<int64_t>(source);
  }
  expected_unit_index_ = num_queued_batch_units_;
  const int64_t source = order_->mixture_sampler().draw_source(cursor_);
  if (++num_queued_batch_units_ == units_per_batch_) {
    num_queued_batch_units_ = 0;
    ++cursor_.num_batches;
  }
  return source;
}

}  // namespace vlmtrain::data
