#include "vlmtrain/base/rng.h"

#include <numeric>
#include <utility>

namespace vlmtrain {

uint64_t RandomStream::next() {
  state_ += 0x9e3779b97f4a7c15U;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
  return mixed ^ (mixed >> 31);
}

uint64_t RandomStream::below(uint64_t bound) {
  const uint64_t unbiased_from = (0 - bound) % bound;  // 2^64 mod bound
  uint64_t value = next();
  while (value < unbiased_from) value = next();
  return value % bound;
}

uint64_t stream_seed(uint64_t seed, std::string_view stream, std::initializer_list<uint64_t> place) {
  uint64_t mixed = RandomStream(seed).next();
  for (const char letter : stream) mixed = RandomStream(mixed ^ static_cast<unsigned char>(letter)).next();
  for (const uint64_t number : place) mixed = RandomStream(mixed ^ number).next();
  return mixed;
}

std::vector<int64_t> permutation(int64_t count, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  RandomStream random(seed);
  for (size_t last = order.size(); last > 1; --last) std::swap(order[last - 1], order[random.below(last)]);
  return order;
}

}  // namespace vlmtrain
