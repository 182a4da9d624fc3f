#include "vlmtrain/data/pack_census.h"

#include <algorithm>
#include <limits>

namespace vlmtrain::data {

Packs collect_first_epoch_packs(const SampleOrder& order) {
  Packs packs;
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    const auto epoch = order.epoch(source, 0);
    const int64_t sample_offset = std::ssize(packs.samples);
    for (const int64_t end : epoch->ends) packs.ends.push_back(sample_offset + end);
    packs.samples.insert(packs.samples.end(), epoch->samples.begin(), epoch->samples.end());
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
      statistics.limited_by_images += is_image_limited ? 1 : 0;
      statistics.limited_by_tiles += !is_image_limited && limits.tiles && total.tiles >= *limits.tiles ? 1 : 0;
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
  statistics.fill.limited_by_media = statistics.limited_by_images + statistics.limited_by_tiles;
  return statistics;
}

}  // namespace vlmtrain::data
