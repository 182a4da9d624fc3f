#include "vlmtrain/data/order/draws.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"

namespace vlmtrain::data {

namespace {

/// Minimum size of a group of blocks whose samples are mixed; both limits apply. Larger groups mix
/// better and take more memory, since io::RowGroupCache holds the blocks of a group while its
/// samples are drawn. Chosen without measurement.
constexpr size_t kMinShuffledBlocks = 2;
constexpr int64_t kMinShuffledSamples = 512;

/// Returns the seed of an epoch. Source 0 has the same seed as a data set without mixture, so that
/// runs of earlier versions resume with the same order.
uint64_t derive_order_seed(uint64_t seed, int64_t epoch, int64_t source) {
  if (source == 0) return derive_stream_seed(seed, "order", {static_cast<uint64_t>(epoch)});
  return derive_stream_seed(seed, "order", {static_cast<uint64_t>(epoch), static_cast<uint64_t>(source)});
}

/// The capacity that remains in an open pack.
struct RemainingCapacity {
  int64_t tokens = 0;
  int64_t num_media = 0;
  int64_t tiles = 0;

  bool has_media_capacity() const { return num_media > 0 && tiles > 0; }
  bool fits(const SampleSize& size) const {
    return size.tokens <= tokens && size.num_media <= num_media && size.tiles <= tiles;
  }
  void subtract(const SampleSize& size) {
    tokens -= size.tokens;
    num_media -= size.num_media;
    tiles -= size.tiles;
  }
};

RemainingCapacity make_empty_pack_capacity(const PackLimits& limits) {
  return {.tokens = limits.max_tokens,
          .num_media = limits.max_media,
          .tiles = limits.max_tiles.value_or(std::numeric_limits<int64_t>::max())};
}

/// The packs of one window while they are being filled.
class WindowPacker {
 public:
  explicit WindowPacker(const PackLimits& limits) : limits_(limits) {}

  void add(int64_t sample, const SampleSize& size) {
    const auto pack = take_best_or_new_pack(size);
    RemainingCapacity& remaining = remaining_capacities_[pack];
    remaining.subtract(size);
    samples_by_pack_[pack].push_back(sample);
    // Packs that have reached a limit of media are kept separately, so that samples with media do
    // not search them.
    (remaining.has_media_capacity() ? packs_with_media_capacity_ : packs_full_of_media_)
        .emplace(remaining.tokens, pack);
  }

  std::vector<std::vector<int64_t>> take_packs() { return std::move(samples_by_pack_); }

 private:
  using PacksByRemainingTokens = std::set<std::pair<int64_t, size_t>>;

  /// Removes the pack with the fewest remaining tokens that the sample fits into from its set and
  /// returns its index. Opens a new pack if it fits into none.
  size_t take_best_or_new_pack(const SampleSize& size) {
    const auto best_media_pack = find_best_pack(packs_with_media_capacity_, size);
    const auto best_media_full_pack =
        size.num_media == 0 ? find_best_pack(packs_full_of_media_, size) : packs_full_of_media_.end();
    const bool has_media_pack = best_media_pack != packs_with_media_capacity_.end();
    const bool has_media_full_pack = best_media_full_pack != packs_full_of_media_.end();
    if (!has_media_pack && !has_media_full_pack) {
      remaining_capacities_.push_back(make_empty_pack_capacity(limits_));
      samples_by_pack_.emplace_back();
      return remaining_capacities_.size() - 1;
    }
    const bool uses_media_full_pack =
        has_media_full_pack && (!has_media_pack || best_media_full_pack->first <= best_media_pack->first);
    PacksByRemainingTokens& packs = uses_media_full_pack ? packs_full_of_media_ : packs_with_media_capacity_;
    const auto best_pack = uses_media_full_pack ? best_media_full_pack : best_media_pack;
    const size_t pack = best_pack->second;
    packs.erase(best_pack);
    return pack;
  }

  /// Returns the pack of `packs` with the fewest remaining tokens that the sample fits into.
  PacksByRemainingTokens::const_iterator find_best_pack(const PacksByRemainingTokens& packs,
                                                        const SampleSize& size) const {
    auto pack = packs.lower_bound({size.tokens, 0});
    while (pack != packs.end() && !remaining_capacities_[pack->second].fits(size)) ++pack;
    return pack;
  }

  const PackLimits& limits_;
  std::vector<RemainingCapacity> remaining_capacities_;
  std::vector<std::vector<int64_t>> samples_by_pack_;
  PacksByRemainingTokens packs_with_media_capacity_;  // (remaining tokens, index) of each pack
  PacksByRemainingTokens packs_full_of_media_;
};

}  // namespace

std::vector<int64_t> shuffle_epoch(int64_t samples, uint64_t seed, int64_t epoch, int64_t source) {
  return make_random_permutation(samples, derive_order_seed(seed, epoch, source));
}

std::vector<int64_t> shuffle_epoch_by_blocks(int64_t samples, const std::vector<int64_t>& block_starts, uint64_t seed,
                                             int64_t epoch, int64_t source) {
  VLMTRAIN_CHECK(!block_starts.empty() && block_starts.front() == 0 && std::ranges::is_sorted(block_starts) &&
                     block_starts.back() <= samples,
                 "{} blocks of {} samples", block_starts.size(), samples);
  const uint64_t block_seed = derive_order_seed(seed, epoch, source);
  const auto block_order = make_random_permutation(std::ssize(block_starts), block_seed);
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(samples));
  for (size_t first = 0, next = 0; first < block_starts.size(); first = next) {
    const auto begin = std::ssize(order);
    const auto is_group_large_enough = [&] {
      return next - first >= kMinShuffledBlocks && std::ssize(order) - begin >= kMinShuffledSamples;
    };
    for (; next < block_starts.size() && !is_group_large_enough(); ++next) {
      const auto block = static_cast<size_t>(block_order[next]);
      const int64_t end = block + 1 < block_starts.size() ? block_starts[block + 1] : samples;
      for (int64_t sample = block_starts[block]; sample < end; ++sample) order.push_back(sample);
    }
    if (first == 0 && next == block_starts.size()) return shuffle_epoch(samples, seed, epoch, source);
    const auto permutation = make_random_permutation(
        std::ssize(order) - begin, derive_stream_seed(block_seed, "blocks", {static_cast<uint64_t>(first)}));
    const std::vector<int64_t> unshuffled_samples(order.begin() + begin, order.end());
    for (size_t i = 0; i < permutation.size(); ++i) {
      order[static_cast<size_t>(begin) + i] = unshuffled_samples[static_cast<size_t>(permutation[i])];
    }
  }
  return order;
}

MixtureSampler::MixtureSampler(std::vector<SourceShares> changes) : share_changes_(std::move(changes)) {
  VLMTRAIN_CHECK(!share_changes_.empty() && share_changes_.front().first_batch == 0, "no shares for the first batch");
  for (auto& change : share_changes_) {
    auto& shares = change.shares;
    VLMTRAIN_CHECK(shares.size() == share_changes_.front().shares.size(), "{} shares for {} sources", shares.size(),
                   num_sources());
    const bool are_valid_shares = std::ranges::all_of(shares, [](double s) { return std::isfinite(s) && s >= 0; });
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    VLMTRAIN_CHECK(are_valid_shares && sum > 0, "shares must be finite, not negative and not all 0");
    for (double& share : shares) share /= sum;
  }
  VLMTRAIN_CHECK(std::ranges::is_sorted(share_changes_, {}, &SourceShares::first_batch),
                 "changes of shares are not sorted by batch");
}

const std::vector<double>& MixtureSampler::shares(int64_t batch) const {
  const auto next_change = std::ranges::upper_bound(share_changes_, batch, {}, &SourceShares::first_batch);
  return std::prev(next_change)->shares;
}

int64_t MixtureSampler::draw_source(Cursor& cursor) const {
  if (num_sources() == 1) return 0;
  const auto& share = shares(cursor.num_batches);
  VLMTRAIN_CHECK(cursor.source_deficits.size() == share.size(), "a cursor of {} sources",
                 cursor.source_deficits.size());
  // Tijdeman's algorithm: among the sources with a deficit of at least min_deficit, which another
  // draw does not put ahead of their share, draw the one whose deficit would reach 1 - min_deficit
  // first. The tolerance absorbs rounding errors of the deficits, which are sums of one share for
  // each draw.
  constexpr double kDeficitTolerance = 1e-9;
  const double min_deficit = 1.0 / static_cast<double>(2 * num_sources() - 2);
  size_t selected_source = share.size();
  double min_remaining_draws = std::numeric_limits<double>::infinity();
  for (size_t source = 0; source < share.size(); ++source) {
    cursor.source_deficits[source] += share[source];
    if (share[source] == 0 || cursor.source_deficits[source] < min_deficit - kDeficitTolerance) continue;
    const double remaining_draws = (1 - min_deficit - cursor.source_deficits[source]) / share[source];
    if (remaining_draws < min_remaining_draws - kDeficitTolerance) {
      min_remaining_draws = remaining_draws;
      selected_source = source;
    }
  }
  if (selected_source == share.size()) {
    // Only possible after a change of shares, when a source whose share is now 0 has the deficit.
    selected_source = 0;
    for (size_t source = 1; source < share.size(); ++source) {
      const bool is_eligible = share[source] > 0 || share[selected_source] == 0;
      if (is_eligible &&
          (share[selected_source] == 0 || cursor.source_deficits[source] > cursor.source_deficits[selected_source]))
        selected_source = source;
    }
  }
  cursor.source_deficits[selected_source] -= 1;
  return static_cast<int64_t>(selected_source);
}

PackedSamples make_packs(std::span<const int64_t> order, const std::vector<SampleSize>& sizes, const PackLimits& limits,
                         uint64_t seed) {
  PackedSamples packs;
  packs.samples.reserve(order.size());
  uint64_t window_index = 0;
  for (; !order.empty(); ++window_index) {
    const auto count = std::min(order.size(), static_cast<size_t>(std::max<int64_t>(limits.window_size, 1)));
    std::vector<int64_t> window(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
    order = order.subspan(count);
    const auto get_sample_size = [&](int64_t sample) -> const SampleSize& {
      return sizes[static_cast<size_t>(sample)];
    };
    std::ranges::stable_sort(window, [&](int64_t a, int64_t b) {
      return std::pair(get_sample_size(a).tokens, get_sample_size(a).num_media) >
             std::pair(get_sample_size(b).tokens, get_sample_size(b).num_media);
    });
    WindowPacker window_packer(limits);
    for (const int64_t sample : window) {
      VLMTRAIN_CHECK(limits.fits(get_sample_size(sample)), "sample {} is larger than a pack", sample);
      window_packer.add(sample, get_sample_size(sample));
    }
    const auto window_packs = window_packer.take_packs();
    for (const int64_t pack_index :
         make_random_permutation(std::ssize(window_packs), derive_stream_seed(seed, "packs", {window_index}))) {
      const auto& pack_samples = window_packs[static_cast<size_t>(pack_index)];
      packs.samples.insert(packs.samples.end(), pack_samples.begin(), pack_samples.end());
      packs.pack_ends.push_back(std::ssize(packs.samples));
    }
  }
  return packs;
}

PackStatistics compute_pack_statistics(const PackedSamples& packs, const std::vector<SampleSize>& sizes,
                                       const PackLimits& limits) {
  PackStatistics statistics{.fill = {.num_packs = std::ssize(packs.pack_ends)}};
  if (packs.pack_ends.empty()) return statistics;
  const auto get_sample_size = [&](int64_t sample) -> const SampleSize& { return sizes[static_cast<size_t>(sample)]; };
  int64_t min_sample_tokens = std::numeric_limits<int64_t>::max();
  for (const int64_t sample : packs.samples)
    min_sample_tokens = std::min(min_sample_tokens, get_sample_size(sample).tokens);
  statistics.pack_sizes.reserve(packs.pack_ends.size());
  statistics.pack_sample_counts.reserve(packs.pack_ends.size());
  int64_t tokens = 0, images = 0, max_tiles = -1;
  for (size_t pack_index = 0; pack_index < packs.pack_ends.size(); ++pack_index) {
    const auto first = packs.samples.begin() + (pack_index > 0 ? packs.pack_ends[pack_index - 1] : 0);
    const auto end = packs.samples.begin() + packs.pack_ends[pack_index];
    SampleSize total;
    std::for_each(first, end, [&](int64_t sample) {
      total.tokens += get_sample_size(sample).tokens;
      total.num_media += get_sample_size(sample).num_media;
      total.tiles += get_sample_size(sample).tiles;
    });
    tokens += total.tokens;
    images += total.num_media;
    statistics.pack_sizes.push_back(total);
    statistics.pack_sample_counts.push_back(end - first);
    if (limits.max_tokens - total.tokens >= min_sample_tokens) {
      const bool is_at_media_limit = total.num_media >= limits.max_media;
      statistics.num_packs_at_media_limit += is_at_media_limit ? 1 : 0;
      statistics.num_packs_at_tile_limit +=
          !is_at_media_limit && limits.max_tiles && total.tiles >= *limits.max_tiles ? 1 : 0;
    }
    if (total.tiles > max_tiles) {
      max_tiles = total.tiles;
      statistics.largest_pack_sample_indices.assign(first, end);
    }
  }
  const auto num_packs = static_cast<double>(statistics.fill.num_packs);
  statistics.fill.token_fill = static_cast<double>(tokens) / (num_packs * static_cast<double>(limits.max_tokens));
  statistics.fill.media_fill = static_cast<double>(images) / (num_packs * static_cast<double>(limits.max_media));
  statistics.fill.max_tiles = max_tiles;
  statistics.fill.num_media_limited_packs = statistics.num_packs_at_media_limit + statistics.num_packs_at_tile_limit;
  return statistics;
}

}  // namespace vlmtrain::data
