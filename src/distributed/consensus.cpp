#include "vlmtrain/distributed/consensus.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "vlmtrain/base/error.h"

namespace vlmtrain::distributed {

namespace {

template <class Value>
std::string to_bytes(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

template <class Value>
std::vector<Value> parse_values(const std::string& bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

engine::StepStatus RankConsensus::all_reduce_max(engine::StepStatus status) const {
  for (const auto& text : collectives_.all_gather_strings(std::string(1, static_cast<char>(status)))) {
    status = std::max(status, static_cast<engine::StepStatus>(text.at(0)));
  }
  return status;
}

bool RankConsensus::any_rank(bool value) const {
  const auto all = collectives_.all_gather_strings(value ? "y" : "");
  return std::ranges::find(all, "y") != all.end();
}

/// Sums in rank order, so that all ranks have bit-identical sums.
std::vector<double> RankConsensus::sum_over_ranks(std::vector<double> values) const {
  std::vector<double> sums(values.size());
  for (const auto& text : collectives_.all_gather_strings(to_bytes(values))) {
    const auto terms = parse_values<double>(text);
    VLMTRAIN_CHECK(terms.size() == sums.size(), "{} terms of a rank, {} here", terms.size(), sums.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += terms[i];
  }
  return sums;
}

void RankConsensus::all_reduce_sum(const at::Tensor& tensor) const {
  collectives_.all_reduce_async(tensor);
}

std::vector<int64_t> RankConsensus::union_over_ranks(std::vector<int64_t> values) const {
  const std::string bytes = to_bytes(values);
  std::set<int64_t> all(values.begin(), values.end());
  for (const auto& text : collectives_.all_gather_strings(bytes)) {
    if (text == bytes) continue;  // the common case
    const auto numbers = parse_values<int64_t>(text);
    all.insert(numbers.begin(), numbers.end());
  }
  return {all.begin(), all.end()};
}

}  // namespace vlmtrain::distributed
