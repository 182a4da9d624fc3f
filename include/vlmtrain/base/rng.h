#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// The seed of an independent random stream: a function of the run's seed, the stream's name and its place (an epoch, a
/// step), so that any point of a run can be reached without replaying what came before.
uint64_t derive_stream_seed(uint64_t seed, std::string_view stream, std::initializer_list<uint64_t> position = {});

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers with every compiler and standard library.
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// Uniform in [0, bound), bound > 0, without modulo bias.
  uint64_t uniform(uint64_t bound);

 private:
  uint64_t state_;
};

/// A uniformly random order of 0 … count-1 (Fisher-Yates).
std::vector<int64_t> random_permutation(int64_t count, uint64_t seed);

}  // namespace vlmtrain
