#pragma once

#include <cstdint>
#include <iterator>
#include <random>

namespace vlmtrain {

/// A generator of random jobs, deterministic for a seed.
class Random {
 public:
  explicit Random(uint64_t seed) : generator_(seed) {}
  /// Seeds the generator for the job of this number.
  Random(uint64_t seed, int64_t job) : Random(seed * 1'000'003 + static_cast<uint64_t>(job)) {}

  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }
  bool with_chance(double chance) { return std::bernoulli_distribution(chance)(generator_); }
  template <class List>
  auto pick(const List& list) {
    return *(std::begin(list) + between(0, std::ssize(list) - 1));
  }

 private:
  std::mt19937_64 generator_;
};

/// Global batch sizes, image sizes and LoRA ranks of random jobs.
inline constexpr int64_t kGlobalBatches[] = {1, 4, 6, 8, 12, 16, 24, 30, 32, 48, 64, 96};
inline constexpr int64_t kSides[] = {200, 512, 768, 1024, 2000};
inline int64_t random_rank(Random& random) {
  return random.between(4, 64);
}

}  // namespace vlmtrain
