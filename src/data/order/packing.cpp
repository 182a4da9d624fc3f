#include "vlmtrain/data/order/packing.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/random.h"

namespace vlmtrain::data {

namespace {

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

RemainingCapacity make_capacity(const PackLimits& limits) {
  return {.tokens = limits.tokens,
          .num_media = limits.num_media,
          .tiles = limits.tiles.value_or(std::numeric_limits<int64_t>::max())};
}

/// The packs of one window while they are being filled.
class OpenPacks {
 public:
  explicit OpenPacks(const PackLimits& limits) : limits_(limits) {}

  void add(int64_t sample, const SampleSize& size) {
    const auto pack = take_best_fit(size);
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
  using PacksByTokens = std::set<std::pair<int64_t, size_t>>;

  /// Removes the pack with the fewest remaining tokens that the sample fits into from its set and
  /// returns its index. Opens a new pack if it fits into none.
  size_t take_best_fit(const SampleSize& size) {
    const auto media_fit = find_first_fit(packs_with_media_capacity_, size);
    const auto full_fit = size.num_media == 0 ? find_first_fit(packs_full_of_media_, size) : packs_full_of_media_.end();
    const bool has_media_fit = media_fit != packs_with_media_capacity_.end();
    const bool has_full_fit = full_fit != packs_full_of_media_.end();
    if (!has_media_fit && !has_full_fit) {
      remaining_capacities_.push_back(make_capacity(limits_));
      samples_by_pack_.emplace_back();
      return remaining_capacities_.size() - 1;
    }
    const bool uses_full_pack = has_full_fit && (!has_media_fit || full_fit->first <= media_fit->first);
    PacksByTokens& packs = uses_full_pack ? packs_full_of_media_ : packs_with_media_capacity_;
    const auto fit = uses_full_pack ? full_fit : media_fit;
    const size_t pack = fit->second;
    packs.erase(fit);
    return pack;
  }

  /// Returns the pack of `packs` with the fewest remaining tokens that the sample fits into.
  PacksByTokens::const_iterator find_first_fit(const PacksByTokens& packs, const SampleSize& size) const {
    auto pack = packs.lower_bound({size.tokens, 0});
    while (pack != packs.end() && !remaining_capacities_[pack->second].fits(size)) ++pack;
    return pack;
  }

  const PackLimits& limits_;
  std::vector<RemainingCapacity> remaining_capacities_;
  std::vector<std::vector<int64_t>> samples_by_pack_;
  PacksByTokens packs_with_media_capacity_;  // (remaining tokens, index) of each pack
  PacksByTokens packs_full_of_media_;
};

}  // namespace

Packs pack(std::span<const int64_t> order, const std::vector<SampleSize>& sizes, const PackLimits& limits,
           uint64_t seed) {
  Packs packs;
  packs.samples.reserve(order.size());
  uint64_t window_index = 0;
  for (; !order.empty(); ++window_index) {
    const auto count = std::min(order.size(), static_cast<size_t>(std::max<int64_t>(limits.window_size, 1)));
    std::vector<int64_t> window(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
    order = order.subspan(count);
    const auto get_size = [&](int64_t sample) -> const SampleSize& { return sizes[static_cast<size_t>(sample)]; };
    std::ranges::stable_sort(window, [&](int64_t a, int64_t b) {
      return std::pair(get_size(a).tokens, get_size(a).num_media) >
             std::pair(get_size(b).tokens, get_size(b).num_media);
    });
    OpenPacks open_packs(limits);
    for (const int64_t sample : window) {
      VLMTRAIN_CHECK(limits.fits(get_size(sample)), "sample {} is larger than a pack", sample);
      open_packs.add(sample, get_size(sample));
    }
    const auto window_packs = open_packs.take_packs();
    for (const int64_t pack_index :
         make_random_permutation(std::ssize(window_packs), derive_stream_seed(seed, "packs", {window_index}))) {
      const auto& pack_samples = window_packs[static_cast<size_t>(pack_index)];
      packs.samples.insert(packs.samples.end(), pack_samples.begin(), pack_samples.end());
      packs.ends.push_back(std::ssize(packs.samples));
    }
  }
  return packs;
}

PackStatistics compute_pack_statistics(const Packs& packs, const std::vector<SampleSize>& sizes,
                                       const PackLimits& limits) {
  PackStatistics statistics{.fill = {.packs = std::ssize(packs.ends)}};
  if (packs.ends.empty()) return statistics;
  const auto get_size = [&](int64_t sample) -> const SampleSize& { return sizes[static_cast<size_t>(sample)]; };
  int64_t min_tokens = std::numeric_limits<int64_t>::max();
  for (const int64_t sample : packs.samples) min_tokens = std::min(min_tokens, get_size(sample).tokens);
  statistics.packs.reserve(packs.ends.size());
  statistics.samples.reserve(packs.ends.size());
  int64_t tokens = 0, images = 0, max_tiles = -1;
  for (size_t pack_index = 0; pack_index < packs.ends.size(); ++pack_index) {
    const auto first = packs.samples.begin() + (pack_index > 0 ? packs.ends[pack_index - 1] : 0);
    const auto end = packs.samples.begin() + packs.ends[pack_index];
    SampleSize total;
    std::for_each(first, end, [&](int64_t sample) {
      total.tokens += get_size(sample).tokens;
      total.num_media += get_size(sample).num_media;
      total.tiles += get_size(sample).tiles;
    });
    tokens += total.tokens;
    images += total.num_media;
    statistics.packs.push_back(total);
    statistics.samples.push_back(end - first);
    if (limits.tokens - total.tokens >= min_tokens) {
      const bool is_image_limited = total.num_media >= limits.num_media;
      statistics.num_limited_by_images += is_image_limited ? 1 : 0;
      statistics.num_limited_by_tiles += !is_image_limited && limits.tiles && total.tiles >= *limits.tiles ? 1 : 0;
    }
    if (total.tiles > max_tiles) {
      max_tiles = total.tiles;
      statistics.largest_tile_pack.assign(first, end);
    }
  }
  const auto num_packs = static_cast<double>(statistics.fill.packs);
  statistics.fill.tokens = static_cast<double>(tokens) / (num_packs * static_cast<double>(limits.tokens));
  statistics.fill.num_media = static_cast<double>(images) / (num_packs * static_cast<double>(limits.num_media));
  statistics.fill.max_tiles = max_tiles;
  statistics.fill.num_limited_by_media = statistics.num_limited_by_images + statistics.num_limited_by_tiles;
  return statistics;
}

}  // namespace vlmtrain::data
