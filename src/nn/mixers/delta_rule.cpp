#include "nn/mixers/delta_rule.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <utility>

#include "nn/mixers/triangular_inverse.h"
#include "vlmtrain/nn/mixers/chunk_layout.h"

namespace vlmtrain::nn {

namespace {

// Shapes in this file: C chunks, K key heads, H value heads, R = H / K, rows of a chunk i and j.

/// Chunks [first, first + count): those of a step of the scan.
struct Step {
  int64_t first, count;
};

std::vector<Step> make_steps(std::span<const int64_t> chunks_per_step) {
  std::vector<Step> steps;
  int64_t first = 0;
  for (const int64_t count : chunks_per_step) {
    steps.push_back({first, count});
    first += count;
  }
  return steps;
}

/// Returns the matrices of a step as a batch, [count · H, rows, columns].
at::Tensor select_step(const at::Tensor& x, const Step& step) {
  return x.narrow(0, step.first, step.count).flatten(0, 1);
}

/// [C, H, …] → [C, K, R, …]
at::Tensor group_heads(const at::Tensor& x, int64_t key_heads) {
  return x.unflatten(1, {key_heads, -1});
}

/// Merges the value heads of a key head into rows: [C, H, i, n] → [C, K, R · i, n].
at::Tensor stack_value_heads(const at::Tensor& x, int64_t key_heads) {
  return x.view({x.size(0), key_heads, -1, x.size(3)});
}

/// The matrices of all chunks that do not depend on states. G is the sum of log_decay up to and
/// including a row.
struct ChunkMatrices {
  at::Tensor pair_decay;       // [C, H, i, j]: e^(G_i − G_j) for j <= i, else 0
  at::Tensor row_decay;        // e^G [C, H, i]
  at::Tensor remaining_decay;  // e^(G_last − G) [C, H, i]
  at::Tensor key_products;     // k_i · k_j [C, K, i, j]
  at::Tensor inverse;          // (I + L)⁻¹ [C, H, i, j] for L_ij = β_i k_i·k_j pair_decay_ij, j < i
  at::Tensor attention;        // q_i · k_j pair_decay_ij [C, H, i, j]
  at::Tensor query, key;       // q e^G and k e^(G_last − G) [C, H, i, key_dim]
  at::Tensor state_reads;      // W = inverse · (β e^G k) [C, H, i, key_dim]
  at::Tensor values;           // U = inverse · (β v) [C, H, i, value_dim]

  explicit ChunkMatrices(const DeltaRuleInputs& inputs) {
    const int64_t key_heads = inputs.key.size(1);
    const at::Tensor cumulative = inputs.log_decay.cumsum(-1);
    pair_decay = (cumulative.unsqueeze(-1) - cumulative.unsqueeze(-2)).exp_().tril_();
    row_decay = cumulative.exp();
    remaining_decay = (cumulative.narrow(-1, kChunkRows - 1, 1) - cumulative).exp_();
    key_products = at::matmul(inputs.key, inputs.key.mT());
    const at::Tensor grouped_decay = group_heads(pair_decay, key_heads);
    const at::Tensor system = (key_products.unsqueeze(2) * grouped_decay).flatten(1, 2).mul_(inputs.beta.unsqueeze(-1));
    inverse = invert_unit_lower(system.flatten(0, 1)).view_as(pair_decay);
    attention = (at::matmul(inputs.query, inputs.key.mT()).unsqueeze(2) * grouped_decay).flatten(1, 2);
    query = (inputs.query.unsqueeze(2) * group_heads(row_decay, key_heads).unsqueeze(-1)).flatten(1, 2);
    key = (inputs.key.unsqueeze(2) * group_heads(remaining_decay, key_heads).unsqueeze(-1)).flatten(1, 2);
    values = at::matmul(inverse * inputs.beta.unsqueeze(-2), inputs.value);
    const at::Tensor read_weights = inverse * (inputs.beta * row_decay).unsqueeze(-2);
    state_reads = at::matmul(stack_value_heads(read_weights, key_heads), inputs.key).view_as(query);
  }

  /// Returns the decay over all rows of each chunk of a step, [count · H, 1, 1].
  at::Tensor get_chunk_decay(const Step& step) const {
    return row_decay.narrow(0, step.first, step.count).select(-1, kChunkRows - 1).reshape({-1, 1, 1});
  }
};

/// Returns the states before each chunk, [C, H, key_dim, value_dim], and subtracts from
/// matrices.values what the states predict, which makes them the corrections v − kᵀ S times β.
at::Tensor compute_states(ChunkMatrices& matrices, const std::vector<Step>& steps) {
  const at::Tensor& values = matrices.values;
  at::Tensor states =
      at::empty({values.size(0), values.size(1), matrices.key.size(3), values.size(3)}, values.options());
  states.narrow(0, 0, steps.front().count).zero_();
  for (size_t i = 0; i < steps.size(); ++i) {
    const at::Tensor state = select_step(states, steps[i]), correction = select_step(values, steps[i]);
    if (i > 0) correction.baddbmm_(select_step(matrices.state_reads, steps[i]), state, 1, -1);
    if (i + 1 == steps.size()) break;
    const Step continued{steps[i].first, steps[i + 1].count};
    at::Tensor next = select_step(states, steps[i + 1]);
    at::mul_out(next, select_step(states, continued), matrices.get_chunk_decay(continued));
    next.baddbmm_(select_step(matrices.key, continued).mT(), select_step(values, continued));
  }
  return states;
}

/// Gradients of ChunkMatrices' tensors that the reverse scan computes.
struct ScanGradients {
  at::Tensor values;       // [C, H, i, value_dim]
  at::Tensor key;          // [C, H, i, key_dim]
  at::Tensor chunk_decay;  // of e^G_last, [C, H]
};

/// Propagates the gradients of the states from the last step to the first. `gradient` is that of
/// the output.
ScanGradients run_reverse_scan(const ChunkMatrices& matrices, const at::Tensor& states, const std::vector<Step>& steps,
                               const at::Tensor& gradient) {
  ScanGradients result{.values = at::matmul(matrices.attention.mT(), gradient),
                       .key = at::empty_like(matrices.key),
                       .chunk_decay = at::zeros({states.size(0), states.size(1)}, states.options())};
  const at::Tensor state_gradients =
      at::zeros({steps.front().count, states.size(1), states.size(2), states.size(3)}, states.options());
  for (size_t i = steps.size(); i-- > 0;) {
    const Step& step = steps[i];
    // Of the states after the chunks.
    const at::Tensor state_gradient = select_step(state_gradients, {0, step.count});
    const at::Tensor dvalues = select_step(result.values, step);
    dvalues.baddbmm_(select_step(matrices.key, step), state_gradient);
    at::Tensor dkey = select_step(result.key, step);
    at::bmm_out(dkey, select_step(matrices.values, step), state_gradient.mT());
    if (i == 0) break;
    select_step(result.chunk_decay.unsqueeze(-1), step)
        .copy_((select_step(states, step) * state_gradient).sum({1, 2}).unsqueeze(-1));
    state_gradient.mul_(matrices.get_chunk_decay(step));
    state_gradient.baddbmm_(select_step(matrices.query, step).mT(), select_step(gradient, step));
    state_gradient.baddbmm_(select_step(matrices.state_reads, step).mT(), dvalues, 1, -1);
  }
  return result;
}

/// Sums over the value heads of each key head: [C, H, …] → [C, K, …].
at::Tensor sum_value_heads(const at::Tensor& x, int64_t key_heads) {
  return key_heads == x.size(1) ? x : group_heads(x, key_heads).sum(2);
}

}  // namespace

DeltaRuleOutput delta_rule(const DeltaRuleInputs& inputs, std::span<const int64_t> chunks_per_step, bool with_states) {
  const at::NoGradGuard no_gradients;
  ChunkMatrices matrices(inputs);
  const auto steps = make_steps(chunks_per_step);
  const at::Tensor& values = matrices.values;
  const at::Tensor states =
      at::zeros({steps.front().count, values.size(1), matrices.key.size(3), values.size(3)}, values.options());
  const at::Tensor output = at::empty_like(values);
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const at::Tensor state = select_step(states, {0, step.count}), correction = select_step(values, step);
    at::Tensor state_output = select_step(output, step);
    if (i > 0) correction.baddbmm_(select_step(matrices.state_reads, step), state, 1, -1);
    if (i > 0) at::bmm_out(state_output, select_step(matrices.query, step), state);
    if (i == 0) state_output.zero_();
    const int64_t num_updated = with_states ? step.count : i + 1 < steps.size() ? steps[i + 1].count : 0;
    if (num_updated == 0) break;
    const Step updated{step.first, num_updated};
    const at::Tensor next = select_step(states, {0, num_updated});
    next.mul_(matrices.get_chunk_decay(updated));
    next.baddbmm_(select_step(matrices.key, updated).mT(), select_step(values, updated));
  }
  output.flatten(0, 1).baddbmm_(matrices.attention.flatten(0, 1), values.flatten(0, 1));
  return {.value = output, .states = with_states ? states : at::Tensor()};
}

DeltaRuleInputs delta_rule_backward(const DeltaRuleInputs& inputs, std::span<const int64_t> chunks_per_step,
                                    const at::Tensor& gradient) {
  const at::NoGradGuard no_gradients;
  const int64_t key_heads = inputs.key.size(1);
  ChunkMatrices matrices(inputs);
  const auto steps = make_steps(chunks_per_step);
  at::Tensor states = compute_states(matrices, steps);
  ScanGradients scan = run_reverse_scan(matrices, states, steps, gradient);
  const at::Tensor dstate_reads = at::matmul(scan.values, states.mT()).neg_();
  const at::Tensor dquery = at::matmul(gradient, states.mT());  // of q e^G
  states.reset();

  // Factors that only scale rows: q e^G, k e^(G_last − G) and e^G_last.
  const auto scale_and_sum = [&](const at::Tensor& x, const at::Tensor& factors) {
    return sum_value_heads(x * factors.unsqueeze(-1), key_heads);
  };
  at::Tensor dcumulative = (dquery * matrices.query).sum(-1);
  // The last row decays by 1, whatever the gates: its terms would cancel, but not their rounding.
  const at::Tensor dremaining = (scan.key * matrices.key).sum(-1);
  dremaining.select(-1, kChunkRows - 1).zero_();
  dcumulative.sub_(dremaining);
  dcumulative.select(-1, kChunkRows - 1)
      .add_(dremaining.sum(-1))
      .addcmul_(scan.chunk_decay, matrices.row_decay.select(-1, kChunkRows - 1));
  DeltaRuleInputs result{.query = scale_and_sum(dquery, matrices.row_decay),
                         .key = scale_and_sum(scan.key, matrices.remaining_decay)};

  // The attention within a chunk: q_i · k_j pair_decay_ij.
  at::Tensor dattention = at::matmul(gradient, matrices.values.mT());
  const auto add_pair_decay_gradient = [&](const at::Tensor& weighted) {
    dcumulative.add_(weighted.sum(-1)).sub_(weighted.sum(-2));
  };
  // Without the diagonal, where the decay is 1.
  add_pair_decay_gradient((dattention * matrices.attention).tril_(-1));
  dattention.mul_(matrices.pair_decay);
  const at::Tensor dproducts = sum_value_heads(dattention, key_heads);
  result.query.add_(at::matmul(dproducts, inputs.key));
  result.key.add_(at::matmul(dproducts.mT(), inputs.query));
  dattention.reset();

  // values = inverse · (β v) and state_reads = inverse · (β e^G k).
  at::Tensor dweights = at::matmul(scan.values, inputs.value.mT());  // of inverse_ij β_j
  result.value = at::matmul((matrices.inverse * inputs.beta.unsqueeze(-2)).mT(), scan.values);
  result.beta = (dweights * matrices.inverse).sum(-2);
  at::Tensor dinverse = dweights.mul_(inputs.beta.unsqueeze(-2));
  const at::Tensor read_factors = inputs.beta * matrices.row_decay;
  const at::Tensor stacked = stack_value_heads(dstate_reads, key_heads);
  result.key.add_(
      at::matmul(stack_value_heads(matrices.inverse * read_factors.unsqueeze(-2), key_heads).mT(), stacked));
  const at::Tensor dread_weights = at::matmul(stacked, inputs.key.mT()).view_as(dinverse);
  const at::Tensor dread_factors = (dread_weights * matrices.inverse).sum(-2);
  result.beta.addcmul_(dread_factors, matrices.row_decay);
  dcumulative.addcmul_(dread_factors, read_factors);
  dinverse.addcmul_(dread_weights, read_factors.unsqueeze(-2));

  // The inverse of I + L: dL = −inverseᵀ · dinverse · inverseᵀ.
  const at::Tensor transposed = matrices.inverse.mT();
  at::Tensor dsystem = at::matmul(at::matmul(transposed, dinverse), transposed).neg_().tril_(-1);
  dsystem.mul_(matrices.pair_decay);
  const at::Tensor scaled =
      (group_heads(dsystem, key_heads) * matrices.key_products.unsqueeze(2)).flatten(1, 2);  // of β_i
  result.beta.add_(scaled.sum(-1));
  add_pair_decay_gradient(scaled * inputs.beta.unsqueeze(-1));
  const at::Tensor dkey_products = sum_value_heads(dsystem.mul_(inputs.beta.unsqueeze(-1)), key_heads);
  result.key.add_(at::matmul(dkey_products + dkey_products.mT(), inputs.key));

  // Sums over the row and those after it; at::flip has no meta kernel, which dry runs on the host need.
  result.log_decay = at::matmul(dcumulative, at::ones({kChunkRows, kChunkRows}, dcumulative.options()).tril_());
  return result;
}

at::Tensor delta_rule_step(const DeltaRuleInputs& inputs, const at::Tensor& state) {
  const at::NoGradGuard no_gradients;
  const int64_t ratio = inputs.value.size(1) / inputs.key.size(1);
  const at::Tensor key = inputs.key.repeat_interleave(ratio, 1).unsqueeze(-1);  // [sequences, H, key_dim, 1]
  state.mul_(inputs.log_decay.exp().unsqueeze(-1).unsqueeze(-1));
  const at::Tensor prediction = at::matmul(key.mT(), state);  // [sequences, H, 1, value_dim]
  const at::Tensor correction = (inputs.value.unsqueeze(2) - prediction).mul_(inputs.beta.unsqueeze(-1).unsqueeze(-1));
  state.addcmul_(key, correction);
  return at::matmul(inputs.query.repeat_interleave(ratio, 1).unsqueeze(2), state).squeeze(2);
}

}  // namespace vlmtrain::nn
