#include "vlmtrain/distributed/consensus.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "vlmtrain/base/error.h"

namespace vlmtrain::distributed {

namespace {

template <class Value>
std::string bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

template <class Value>
std::vector<Value> values_in(const std::string& bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

engine::Verdict RankConsensus::worst(engine::Verdict own) const {
  for (const auto& text : ranks_.each(std::string(1, static_cast<char>(own)))) {
    own = std::max(own, static_cast<engine::Verdict>(text.at(0)));
  }
  return own;
}

bool RankConsensus::any(bool own) const {
  const auto all = ranks_.each(own ? "y" : "");
  return std::ranges::find(all, "y") != all.end();
}

/// By rank, so that all have the same sum to the bit.
std::vector<double> RankConsensus::sum(std::vector<double> own) const {
  std::vector<double> sums(own.size());
  for (const auto& text : ranks_.each(bytes_of(own))) {
    const auto terms = values_in<double>(text);
    VLMTRAIN_CHECK(terms.size() == sums.size(), "{} terms of a rank, {} here", terms.size(), sums.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += terms[i];
  }
  return sums;
}

void RankConsensus::add_up(const at::Tensor& own) const {
  ranks_.begin_sum(own);
}

std::vector<int64_t> RankConsensus::together(std::vector<int64_t> own) const {
  const std::string own_text = bytes_of(own);
  std::set<int64_t> all(own.begin(), own.end());
  for (const auto& text : ranks_.each(own_text)) {
    if (text == own_text) continue;  // as most do
    const auto numbers = values_in<int64_t>(text);
    all.insert(numbers.begin(), numbers.end());
  }
  return {all.begin(), all.end()};
}

}  // namespace vlmtrain::distributed
