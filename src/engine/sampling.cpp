#include "vlmtrain/engine/sampling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/copy.h"

namespace vlmtrain::engine {

namespace {

constexpr double kRemovedLogit = -std::numeric_limits<double>::infinity();

at::Tensor keep_top_k(const at::Tensor& logits, int64_t k) {
  const at::Tensor best = std::get<0>(at::topk(logits, std::min(k, logits.size(1)), 1));
  return logits.masked_fill(logits < best.narrow(1, best.size(1) - 1, 1), kRemovedLogit);
}

at::Tensor keep_top_p(const at::Tensor& logits, double p) {
  const auto [ascending, order] = at::sort(logits, 1);
  at::Tensor removed = at::cumsum(at::softmax(ascending, 1), 1) <= 1 - p;
  removed.narrow(1, removed.size(1) - 1, 1).fill_(false);  // the most probable token always stays
  return logits.masked_fill(removed.scatter(1, order, removed), kRemovedLogit);
}

/// int64 [sequences, longest], each row its tokens and its first one again and again.
at::Tensor pad_rows(std::span<const std::vector<int64_t>> sequences) {
  size_t longest = 0;
  for (const auto& tokens : sequences) longest = std::max(longest, tokens.size());
  const at::Tensor rows = at::empty({std::ssize(sequences), static_cast<int64_t>(longest)}, at::kLong);
  auto* output = rows.mutable_data_ptr<int64_t>();
  for (const auto& tokens : sequences) {
    VLMTRAIN_CHECK(!tokens.empty(), "a sequence without tokens");
    std::fill_n(std::copy(tokens.begin(), tokens.end(), output), longest - tokens.size(), tokens.front());
    output += longest;
  }
  return rows;
}

}  // namespace

void validate(const SamplingSettings& settings) {
  const auto& [temperature, top_k, top_p, penalty, seed] = settings;
  if (!(temperature >= 0)) throw usage_error("temperature {}: give 0 (always the most probable) or more", temperature);
  if (top_k < 0) throw usage_error("top_k {}: give 0 (all tokens) or a number of tokens", top_k);
  if (!(top_p > 0 && top_p <= 1)) throw usage_error("top_p {}: give more than 0 and at most 1 (all tokens)", top_p);
  if (!(penalty > 0)) throw usage_error("repetition_penalty {}: give a number above 0; 1 is none", penalty);
}

at::Tensor penalize_repetition(const at::Tensor& logits, std::span<const std::vector<int64_t>> previous_tokens,
                               double penalty) {
  const at::Tensor tokens = memory::copy_to_device(pad_rows(previous_tokens), logits.device());
  const at::Tensor token_logits = logits.gather(1, tokens);
  return logits.scatter(1, tokens, at::where(token_logits < 0, token_logits * penalty, token_logits / penalty));
}

at::Tensor filter_logits(const at::Tensor& logits, const SamplingSettings& settings) {
  VLMTRAIN_CHECK(settings.temperature > 0, "nothing is drawn at temperature {}", settings.temperature);
  at::Tensor result = logits.to(at::kFloat) / settings.temperature;
  if (settings.top_k > 0) result = keep_top_k(result, settings.top_k);
  if (settings.top_p < 1) result = keep_top_p(result, settings.top_p);
  return result;
}

at::Tensor sample_tokens(const at::Tensor& logits, const at::Tensor& uniform) {
  const at::Tensor cumulative = at::cumsum(at::softmax(logits, 1, at::kDouble), 1);
  const at::Tensor target = uniform.unsqueeze(1) * cumulative.narrow(1, cumulative.size(1) - 1, 1);
  return (cumulative <= target).sum(1);
}

}  // namespace vlmtrain::engine
