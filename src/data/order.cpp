#include "vlmtrain/data/order.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {

Cursor after(Cursor cursor, int64_t samples) {
  if (cursor.position + 1 < samples) return {cursor.epoch, cursor.position + 1};
  return {cursor.epoch + 1, 0};
}

std::vector<int64_t> epoch_order(int64_t samples, uint64_t seed, int64_t epoch) {
  return permutation(samples, stream_seed(seed, "order", {static_cast<uint64_t>(epoch)}));
}

EpochSequence::EpochSequence(int64_t samples, uint64_t seed, Cursor start)
    : samples_(samples), seed_(seed), cursor_(start), order_(epoch_order(samples, seed, start.epoch)) {
  VLMTRAIN_CHECK(start.epoch >= 0 && start.position >= 0 && start.position < samples,
                 "position {} of epoch {} with {} samples", start.position, start.epoch, samples);
}

int64_t EpochSequence::next() {
  const int64_t index = order_[static_cast<size_t>(cursor_.position)];
  const Cursor following = after(cursor_, samples_);
  if (following.epoch != cursor_.epoch) order_ = epoch_order(samples_, seed_, following.epoch);
  cursor_ = following;
  return index;
}

}  // namespace vlmtrain::data
