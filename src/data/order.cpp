#include "vlmtrain/data/order.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {

namespace {

/// Blocks whose samples are mixed with each other: at least so many, and until they hold so many samples. What they
/// take has to stay in memory while they are drawn from (io::RowGroupCache).
constexpr size_t kBlocksMixed = 2;
constexpr int64_t kSamplesMixed = 512;

/// A data set of one lane has the orders that it had before there were lanes.
uint64_t order_seed(uint64_t seed, int64_t epoch, int64_t lane) {
  if (lane == 0) return stream_seed(seed, "order", {static_cast<uint64_t>(epoch)});
  return stream_seed(seed, "order", {static_cast<uint64_t>(epoch), static_cast<uint64_t>(lane)});
}

}  // namespace

std::vector<int64_t> epoch_order(int64_t samples, uint64_t seed, int64_t epoch, int64_t lane) {
  return permutation(samples, order_seed(seed, epoch, lane));
}

std::vector<int64_t> epoch_order_by_blocks(int64_t samples, const std::vector<int64_t>& blocks, uint64_t seed,
                                           int64_t epoch, int64_t lane) {
  VLMTRAIN_CHECK(!blocks.empty() && blocks.front() == 0 && std::ranges::is_sorted(blocks) && blocks.back() <= samples,
                 "{} blocks of {} samples", blocks.size(), samples);
  const uint64_t own = order_seed(seed, epoch, lane);
  const auto order_of_blocks = permutation(std::ssize(blocks), own);
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(samples));
  for (size_t first = 0, next = 0; first < blocks.size(); first = next) {
    const auto begin = std::ssize(order);
    const auto is_enough = [&] { return next - first >= kBlocksMixed && std::ssize(order) - begin >= kSamplesMixed; };
    for (; next < blocks.size() && !is_enough(); ++next) {
      const auto block = static_cast<size_t>(order_of_blocks[next]);
      const int64_t end = block + 1 < blocks.size() ? blocks[block + 1] : samples;
      for (int64_t sample = blocks[block]; sample < end; ++sample) order.push_back(sample);
    }
    if (first == 0 && next == blocks.size()) return epoch_order(samples, seed, epoch, lane);  // all are mixed
    const auto mixed =
        permutation(std::ssize(order) - begin, stream_seed(own, "blocks", {static_cast<uint64_t>(first)}));
    const std::vector<int64_t> sorted(order.begin() + begin, order.end());
    for (size_t i = 0; i < mixed.size(); ++i) {
      order[static_cast<size_t>(begin) + i] = sorted[static_cast<size_t>(mixed[i])];
    }
  }
  return order;
}

}  // namespace vlmtrain::data
