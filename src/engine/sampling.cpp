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

constexpr double kNever = -std::numeric_limits<double>::infinity();

at::Tensor keep_top_k(const at::Tensor& logits, int64_t k) {
  const at::Tensor best = std::get<0>(at::topk(logits, std::min(k, logits.size(1)), 1));
  return logits.masked_fill(logits < best.narrow(1, best.size(1) - 1, 1), kNever);
}

at::Tensor keep_top_p(const at::Tensor& logits, double p) {
  const auto [ascending, order] = at::sort(logits, 1);
  at::Tensor left_out = at::cumsum(at::softmax(ascending, 1), 1) <= 1 - p;
  left_out.narrow(1, left_out.size(1) - 1, 1).fill_(false);  // the most probable token always stays
  return logits.masked_fill(left_out.scatter(1, order, left_out), kNever);
}

/// int64 [sequences, longest], each row its tokens and its first one again and again.
at::Tensor as_rows(std::span<const std::vector<int64_t>> sequences) {
  size_t longest = 0;
  for (const auto& tokens : sequences) longest = std::max(longest, tokens.size());
  const at::Tensor rows = at::empty({std::ssize(sequences), static_cast<int64_t>(longest)}, at::kLong);
  auto* place = rows.mutable_data_ptr<int64_t>();
  for (const auto& tokens : sequences) {
    VLMTRAIN_CHECK(!tokens.empty(), "a sequence without tokens");
    std::fill_n(std::copy(tokens.begin(), tokens.end(), place), longest - tokens.size(), tokens.front());
    place += longest;
  }
  return rows;
}

}  // namespace

void check(const SamplingSettings& settings) {
  const auto& [temperature, top_k, top_p, penalty, seed] = settings;
  if (!(temperature >= 0)) throw usage_error("temperature {}: give 0 (always the most probable) or more", temperature);
  if (top_k < 0) throw usage_error("top_k {}: give 0 (all tokens) or a number of tokens", top_k);
  if (!(top_p > 0 && top_p <= 1)) throw usage_error("top_p {}: give more than 0 and at most 1 (all tokens)", top_p);
  if (!(penalty > 0)) throw usage_error("repetition_penalty {}: give a number above 0; 1 is none", penalty);
}

at::Tensor penalize_repetition(const at::Tensor& logits, std::span<const std::vector<int64_t>> occurred,
                               double penalty) {
  const at::Tensor tokens = memory::copy_to_device(as_rows(occurred), logits.device());
  const at::Tensor own = logits.gather(1, tokens);
  return logits.scatter(1, tokens, at::where(own < 0, own * penalty, own / penalty));
}

at::Tensor sampling_logits(const at::Tensor& logits, const SamplingSettings& settings) {
  VLMTRAIN_CHECK(settings.temperature > 0, "nothing is drawn at temperature {}", settings.temperature);
  at::Tensor result = logits.to(at::kFloat) / settings.temperature;
  if (settings.top_k > 0) result = keep_top_k(result, settings.top_k);
  if (settings.top_p < 1) result = keep_top_p(result, settings.top_p);
  return result;
}

at::Tensor draw_tokens(const at::Tensor& sampling_logits, const at::Tensor& uniform) {
  const at::Tensor cumulated = at::cumsum(at::softmax(sampling_logits, 1, at::kDouble), 1);
  const at::Tensor target = uniform.unsqueeze(1) * cumulated.narrow(1, cumulated.size(1) - 1, 1);
  return (cumulated <= target).sum(1);
}

}  // namespace vlmtrain::engine
