#include "vlmtrain/data/held_out.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {

HoldOutSplit hold_out(int64_t samples, double share, uint64_t seed) {
  VLMTRAIN_CHECK(share > 0 && share < 1, "a share of {}", share);
  if (samples < 2)
    throw data_error("data.eval={}: of {} samples none can be held out; name a data set", share, samples);
  const int64_t count = std::clamp<int64_t>(std::llround(share * static_cast<double>(samples)), 1, samples - 1);
  HoldOutSplit split{.train = random_permutation(samples, derive_stream_seed(seed, "held out")), .held_out = {}};
  split.held_out.assign(split.train.end() - count, split.train.end());
  split.train.resize(static_cast<size_t>(samples - count));
  std::ranges::sort(split.train);
  std::ranges::sort(split.held_out);
  return split;
}

}  // namespace vlmtrain::data
