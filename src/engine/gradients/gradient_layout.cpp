#include "vlmtrain/engine/gradients/gradient_layout.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/nn/weights/sharded_block.h"

namespace vlmtrain::engine {

namespace {

using TrainedParameters = std::vector<const nn::Parameter*>;

/// Alignment in elements: 512 bytes, as in the CUDA caching allocator.
constexpr int64_t kBucketAlignment = 128;
/// Maximum size of a bucket in elements: 25 MiB, PyTorch DDP's default bucket_cap_mb. Smaller
/// buckets use the network less efficiently. The reduction of a larger bucket starts later and
/// overlaps less with the backward pass.
constexpr int64_t kMaxBucketElements = int64_t{25} * 1024 * 1024 / 4;
/// A bucket of undivided parameters may exceed its maximum size until its padding is at most this
/// part of its elements. Closed at the maximum size, buckets of a 7B model would have as much padding
/// as elements, because its largest matrices are larger than a bucket. 10 % was chosen without
/// measurement.
constexpr double kMaxPaddingRatio = 0.1;
/// Maximum distance in the store between parameters of one nn::MergedLinear: up to weights, biases
/// and adapter tensors of three Linears.
constexpr size_t kMaxMergedLinearSpan = 16;

int64_t round_up(int64_t elements, int64_t alignment) {
  return (elements + alignment - 1) / alignment * alignment;
}

/// The alignment of tensors and parts, and the parameters that may not be divided.
struct LayoutRules {
  int64_t alignment;
  GradientLayout::UndividedPredicate is_undivided;  // empty if all may be divided
  bool separates_host_memory = false;               // parameters in host memory have their own buckets
};

/// Parameters that are added to a bucket together and get adjacent offsets.
struct ParameterUnit {
  std::vector<size_t> indices{};  // ascending
  int64_t elements = 0;           // padding included
  bool is_undivided = false;      // whether all must be in one rank's part
  bool is_on_host = false;        // whether the gradients are in host memory
};

/// A bucket while parameters are added to it. It consists of equal sections. Undivided parameters
/// are in one section per rank; other parameters are in one section, which all ranks share.
class PartialBucket {
 public:
  explicit PartialBucket(size_t num_sections) : section_fills_(num_sections, 0), section_positions_(num_sections) {
    std::iota(section_positions_.begin(), section_positions_.end(), int64_t{0});
  }

  /// Returns the number of elements of each section, padding of the last tensor included.
  const std::vector<int64_t>& section_fills() const { return section_fills_; }
  /// Returns whether each section is the part of one rank.
  bool has_section_per_rank() const { return section_fills_.size() > 1; }
  /// Sets the position of each section in the bucket, a permutation.
  void set_section_positions(std::vector<int64_t> positions) { section_positions_ = std::move(positions); }

  /// Returns whether the bucket takes another unit: it remains within its maximum size, has less
  /// than one unit per section, or its sections are filled too unevenly.
  bool has_space(const ParameterUnit& unit) const {
    const int64_t filled = std::accumulate(section_fills_.begin(), section_fills_.end(), int64_t{0});
    if (num_units_ < section_fills_.size() || filled + unit.elements <= kMaxBucketElements) return true;
    const int64_t padding = *std::ranges::max_element(section_fills_) * std::ssize(section_fills_) - filled;
    return static_cast<double>(padding) > kMaxPaddingRatio * static_cast<double>(filled);
  }

  /// Appends to the section with the fewest elements, the first one of several.
  void add(const ParameterUnit& unit, const TrainedParameters& trained_parameters, int64_t alignment) {
    const auto section = std::ranges::min_element(section_fills_);
    for (const size_t i : unit.indices) {
      placements_.push_back({.parameter_index = i, .section = section - section_fills_.begin(), .offset = *section});
      *section += round_up(trained_parameters[i]->tensor.numel(), alignment);
    }
    ++num_units_;
    is_on_host_ = unit.is_on_host;
    last_parameter_index_ = *std::ranges::max_element(unit.indices);
  }

  /// Returns the elements of each section if all are equal and consist of the parts of
  /// ranks / sections ranks.
  int64_t compute_section_elements(int64_t ranks, int64_t alignment) const {
    const int64_t ranks_per_section = ranks / std::ssize(section_fills_);
    const int64_t largest = *std::ranges::max_element(section_fills_);
    return round_up((largest + ranks_per_section - 1) / ranks_per_section, alignment) * ranks_per_section;
  }

  /// Returns the bucket. Calls set_offset(parameter, offset) for each of its parameters.
  template <class SetOffset>
  GradientLayout::Bucket finish(int64_t ranks, int64_t alignment, const SetOffset& set_offset) const {
    const int64_t section_elements = compute_section_elements(ranks, alignment);
    GradientLayout::Bucket bucket{.elements = section_elements * std::ssize(section_fills_), .is_on_host = is_on_host_};
    for (const auto& placement : placements_) {
      bucket.parameter_indices.push_back(placement.parameter_index);
      const int64_t position = section_positions_[static_cast<size_t>(placement.section)];
      set_offset(placement.parameter_index, position * section_elements + placement.offset);
    }
    return bucket;
  }

  /// Returns the index of the last parameter of the last unit.
  size_t last_parameter_index() const { return last_parameter_index_; }

 private:
  struct Placement {
    size_t parameter_index;
    int64_t section;
    int64_t offset;  // in the section
  };

  std::vector<int64_t> section_fills_;      // in elements
  std::vector<int64_t> section_positions_;  // in the bucket
  std::vector<Placement> placements_;
  size_t num_units_ = 0;
  bool is_on_host_ = false;
  size_t last_parameter_index_ = 0;
};

/// Returns all parameters outside of sharded blocks in units that stay adjacent, last parameters
/// first. Adjacent weights (nn::MergedLinear) get adjacent offsets, so they remain adjacent when
/// ShardedOptimizerSync moves them to the same layout.
std::vector<ParameterUnit> find_units(const TrainedParameters& trained_parameters, const LayoutRules& rules) {
  std::vector<ParameterUnit> units;
  std::vector<bool> is_done(trained_parameters.size(), false);
  for (size_t i = trained_parameters.size(); i-- > 0;) {
    if (is_done[i] || trained_parameters[i]->has_sharded_gradient()) continue;
    ParameterUnit& unit = units.emplace_back();
    for (size_t other = i - std::min(i, kMaxMergedLinearSpan); other <= i; ++other) {
      const nn::Parameter& parameter = *trained_parameters[other];
      if (is_done[other] || parameter.has_sharded_gradient()) continue;
      if (!parameter.shares_allocation(*trained_parameters[i])) continue;
      is_done[other] = true;
      unit.indices.push_back(other);
      unit.elements += round_up(parameter.tensor.numel(), rules.alignment);
      unit.is_undivided |= rules.is_undivided && rules.is_undivided(parameter);
      unit.is_on_host |= rules.separates_host_memory && parameter.is_on_host();
    }
    // The A and B of adapters may have one storage, in which their order is not that of the parameters.
    std::ranges::stable_sort(unit.indices, {},
                             [&](size_t index) { return trained_parameters[index]->tensor.storage_offset(); });
  }
  return units;
}

/// Returns 0, 1, … in the order of descending values; equal values remain in order.
std::vector<size_t> sort_indices_descending(const std::vector<int64_t>& values) {
  std::vector<size_t> indices(values.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  std::ranges::stable_sort(indices, std::ranges::greater{}, [&](size_t i) { return values[i]; });
  return indices;
}

/// Assigns the sections of undivided parameters to ranks, so that ranks have nearly equal numbers of
/// elements: the largest section of each bucket goes to the rank that has the fewest so far. Rank 0
/// gets the most in the end, because plans simulate rank 0.
void balance_ranks(std::vector<PartialBucket>& buckets, int64_t num_ranks) {
  std::vector<int64_t> rank_elements(static_cast<size_t>(num_ranks), 0);
  std::vector<std::vector<size_t>> section_ranks(buckets.size());
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    if (!buckets[bucket].has_section_per_rank()) continue;
    const auto& fills = buckets[bucket].section_fills();
    const auto sections = sort_indices_descending(fills), ranks = sort_indices_descending(rank_elements);
    section_ranks[bucket].resize(fills.size());
    for (size_t i = 0; i < fills.size(); ++i) {
      const size_t rank = ranks[ranks.size() - 1 - i];
      section_ranks[bucket][sections[i]] = rank;
      rank_elements[rank] += fills[sections[i]];
    }
  }
  const auto order = sort_indices_descending(rank_elements);
  std::vector<int64_t> positions(order.size());
  for (size_t i = 0; i < order.size(); ++i) positions[order[i]] = static_cast<int64_t>(i);
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    if (section_ranks[bucket].empty()) continue;
    std::vector<int64_t> section_positions;
    for (const size_t rank : section_ranks[bucket]) section_positions.push_back(positions[rank]);
    buckets[bucket].set_section_positions(std::move(section_positions));
  }
}

/// Returns the buckets of all parameters outside of sharded blocks. They are ordered by the last
/// unit that they take, so that a bucket does not wait for another one that remains open longer.
std::vector<PartialBucket> fill_buckets(const TrainedParameters& trained_parameters, int64_t ranks,
                                        const LayoutRules& rules) {
  std::vector<PartialBucket> buckets;
  // Indices into `buckets`, of those that are being filled.
  std::optional<size_t> divisible_bucket, undivided_bucket, host_bucket;
  for (const auto& unit : find_units(trained_parameters, rules)) {
    std::optional<size_t>& current = unit.is_undivided ? undivided_bucket
                                     : unit.is_on_host ? host_bucket
                                                       : divisible_bucket;
    if (!current || !buckets[*current].has_space(unit)) {
      current = buckets.size();
      buckets.emplace_back(unit.is_undivided ? static_cast<size_t>(ranks) : 1);
    }
    buckets[*current].add(unit, trained_parameters, rules.alignment);
  }
  std::ranges::sort(buckets, std::ranges::greater{}, &PartialBucket::last_parameter_index);
  balance_ranks(buckets, ranks);
  return buckets;
}

}  // namespace

GradientLayout::GradientLayout(const nn::ParameterStore& store, Shard shard, const UndividedPredicate& is_undivided,
                               Offload offload)
    : shard_(shard), has_sharded_blocks_(!store.shard().covers_all()) {
  VLMTRAIN_CHECK(shard.rank >= 0 && shard.rank < shard.count, "rank {} of {} ranks is out of range", shard.rank,
                 shard.count);
  TrainedParameters trained_parameters;
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    VLMTRAIN_CHECK(!parameter.has_sharded_gradient() || !is_undivided || !is_undivided(parameter),
                   "{} is in a sharded block, so its elements belong to several ranks", parameter.name);
    trained_parameters.push_back(&parameter);
    entries_.push_back({.name = parameter.name, .elements = parameter.tensor.numel()});
  }
  const LayoutRules rules{.alignment = shard.covers_all() ? kBucketAlignment : kShardAlignment,
                          .is_undivided = shard.covers_all() ? UndividedPredicate{} : is_undivided,
                          .separates_host_memory = offload == Offload::kGradients};
  for (const auto& filled_bucket : fill_buckets(trained_parameters, shard.count, rules)) {
    buckets_.push_back(filled_bucket.finish(shard.count, rules.alignment, [this](size_t i, int64_t offset) {
      entries_[i].bucket_index = buckets_.size();
      entries_[i].offset = offset;
    }));
  }
  add_block_buckets(trained_parameters);
}

void GradientLayout::add_block_buckets(const std::vector<const nn::Parameter*>& trained_parameters) {
  for (size_t i = trained_parameters.size(); i-- > 0;) {
    const nn::Parameter& parameter = *trained_parameters[i];
    if (!parameter.has_sharded_gradient()) continue;
    const nn::ShardedBlock* const block = parameter.sharded_block.get();
    if (buckets_.empty() || buckets_.back().block != block) {
      buckets_.push_back({.elements = block->elements(nn::ShardedBlock::SectionKind::kTrained), .block = block});
    }
    buckets_.back().parameter_indices.push_back(i);
    entries_[i].bucket_index = buckets_.size() - 1;
    entries_[i].offset = block->section_offset(parameter.index_in_block);
  }
}

ElementRange GradientLayout::get_local_range(size_t i) const {
  const Entry& entry = entries_[i];
  return nn::intersect_shard(entry.offset, entry.elements, get_part_elements(entry.bucket_index), shard_);
}

std::vector<int64_t> GradientLayout::get_non_block_bucket_sizes() const {
  std::vector<int64_t> elements;
  for (const auto& bucket : buckets_) {
    if (bucket.block == nullptr) elements.push_back(bucket.elements);
  }
  return elements;
}

}  // namespace vlmtrain::engine
