#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// Returns the seed of an independent random stream. It depends only on the run's seed, the name
/// `stream` and a position such as {epoch, step}, so a resumed run continues at any point without
/// replaying earlier steps. Its values must not change, or resumed runs would train on other
/// samples.
uint64_t derive_stream_seed(uint64_t seed, std::string_view stream, std::initializer_list<uint64_t> position = {});

/// The generator SplitMix64 (Steele, Lea, Flood 2014). It gives the same numbers with every
/// compiler and standard library, unlike the distributions of <random>.
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed) : state_(seed) {}
  /// Returns 64 uniform random bits.
  uint64_t next();
  /// Returns a uniform number in [0, bound) without modulo bias. REQUIRES: bound > 0.
  uint64_t uniform(uint64_t bound);

 private:
  uint64_t state_;
};

/// Returns a uniformly random permutation of 0 … count-1 (Fisher-Yates). REQUIRES: count >= 0.
std::vector<int64_t> make_random_permutation(int64_t count, uint64_t seed);

}  // namespace vlmtrain
