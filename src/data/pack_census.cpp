#include "vlmtrain/data/pack_census.h"

#include <algorithm>
#include <limits>

namespace vlmtrain::data {

Packs first_packs(const DrawOrder& order) {
  Packs packs;
  for (int64_t lane = 0; lane < order.lanes(); ++lane) {
    const auto epoch = order.epoch(lane, 0);
    const int64_t before = std::ssize(packs.samples);
    for (const int64_t end : epoch->ends) packs.ends.push_back(before + end);
    packs.samples.insert(packs.samples.end(), epoch->samples.begin(), epoch->samples.end());
  }
  return packs;
}

PackCensus census_of(const Packs& packs, const std::vector<SampleSize>& sizes, const PackLimits& limits) {
  PackCensus census{.fill = {.packs = std::ssize(packs.ends)}};
  if (packs.ends.empty()) return census;
  const auto size_of = [&](int64_t sample) -> const SampleSize& { return sizes[static_cast<size_t>(sample)]; };
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (const int64_t sample : packs.samples) shortest = std::min(shortest, size_of(sample).tokens);
  census.packs.reserve(packs.ends.size());
  census.samples.reserve(packs.ends.size());
  int64_t tokens = 0, images = 0, most_tiles = -1;
  for (size_t number = 0; number < packs.ends.size(); ++number) {
    const auto first = packs.samples.begin() + (number > 0 ? packs.ends[number - 1] : 0);
    const auto end = packs.samples.begin() + packs.ends[number];
    SampleSize sum;
    std::for_each(first, end, [&](int64_t sample) {
      sum.tokens += size_of(sample).tokens;
      sum.images += size_of(sample).images;
      sum.tiles += size_of(sample).tiles;
    });
    tokens += sum.tokens;
    images += sum.images;
    census.packs.push_back(sum);
    census.samples.push_back(end - first);
    if (limits.tokens - sum.tokens >= shortest) {
      const bool is_full_of_images = sum.images >= limits.images;
      census.bound_by_images += is_full_of_images ? 1 : 0;
      census.bound_by_tiles += !is_full_of_images && limits.tiles && sum.tiles >= *limits.tiles ? 1 : 0;
    }
    if (sum.tiles > most_tiles) {
      most_tiles = sum.tiles;
      census.of_most_tiles.assign(first, end);
    }
  }
  const auto all = static_cast<double>(census.fill.packs);
  census.fill.tokens = static_cast<double>(tokens) / (all * static_cast<double>(limits.tokens));
  census.fill.images = static_cast<double>(images) / (all * static_cast<double>(limits.images));
  census.fill.most_tiles = most_tiles;
  census.fill.bound_by_media = census.bound_by_images + census.bound_by_tiles;
  return census;
}

}  // namespace vlmtrain::data
