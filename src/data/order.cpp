#include "vlmtrain/data/order.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {

namespace {

/// Blocks whose samples are mixed with each other: at least so many, and until they hold so many samples. What they
/// take has to stay in memory while they are drawn from (io::RowGroupCache).
constexpr size_t kMinShuffledBlocks = 2;
constexpr int64_t kMinShuffledSamples = 512;

/// A data set of one lane has the orders that it had before there were lanes.
uint64_t make_order_seed(uint64_t seed, int64_t epoch, int64_t source) {
  if (source == 0) return derive_stream_seed(seed, "order", {static_cast<uint64_t>(epoch)});
  return derive_stream_seed(seed, "order", {static_cast<uint64_t>(epoch), static_cast<uint64_t>(source)});
}

}  // namespace

std::vector<int64_t> shuffle_epoch(int64_t samples, uint64_t seed, int64_t epoch, int64_t source) {
  return random_permutation(samples, make_order_seed(seed, epoch, source));
}

std::vector<int64_t> shuffle_epoch_by_blocks(int64_t samples, const std::vector<int64_t>& block_starts, uint64_t seed,
                                             int64_t epoch, int64_t source) {
  VLMTRAIN_CHECK(!block_starts.empty() && block_starts.front() == 0 && std::ranges::is_sorted(block_starts) &&
                     block_starts.back() <= samples,
                 "{} blocks of {} samples", block_starts.size(), samples);
  const uint64_t block_seed = make_order_seed(seed, epoch, source);
  const auto block_order = random_permutation(std::ssize(block_starts), block_seed);
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(samples));
  for (size_t first = 0, next = 0; first < block_starts.size(); first = next) {
    const auto begin = std::ssize(order);
    const auto is_enough = [&] {
      return next - first >= kMinShuffledBlocks && std::ssize(order) - begin >= kMinShuffledSamples;
    };
    for (; next < block_starts.size() && !is_enough(); ++next) {
      const auto block = static_cast<size_t>(block_order[next]);
      const int64_t end = block + 1 < block_starts.size() ? block_starts[block + 1] : samples;
      for (int64_t sample = block_starts[block]; sample < end; ++sample) order.push_back(sample);
    }
    if (first == 0 && next == block_starts.size()) return shuffle_epoch(samples, seed, epoch, source);  // all are mixed
    const auto permuted = random_permutation(std::ssize(order) - begin,
                                             derive_stream_seed(block_seed, "blocks", {static_cast<uint64_t>(first)}));
    const std::vector<int64_t> unshuffled(order.begin() + begin, order.end());
    for (size_t i = 0; i < permuted.size(); ++i) {
      order[static_cast<size_t>(begin) + i] = unshuffled[static_cast<size_t>(permuted[i])];
    }
  }
  return order;
}

}  // namespace vlmtrain::data
