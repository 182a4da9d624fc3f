#include "vlmtrain/data/order/mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/random.h"

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

}  // namespace vlmtrain::data
