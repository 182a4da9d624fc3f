#include "models/network/mask/sam_vit/sam_vit_block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>

#include "models/network/block_list.h"
#include "vlmtrain/nn/biased_attention.h"

namespace vlmtrain::models {

namespace {

at::Tensor make_relative_table(const nn::ParameterScope& scope, const char* name, const SamVitConfig& config,
                               int64_t side) {
  if (!config.relative_positions) return {};
  return scope.parameter(name, {2 * side - 1, config.hidden_size / config.heads}, nn::InitialValues::zeros());
}

/// [2 · side − 1, head_dim] → [side, head_dim, side], whose entry [i, :, j] is the row for the distance i − j.
at::Tensor gather_relative_positions(const at::Tensor& table, int64_t side) {
  return table.unfold(0, side, 1).flip(2);
}

}  // namespace

SamVitAttention::SamVitAttention(const nn::ParameterScope& scope, const SamVitConfig& config, int64_t side)
    : heads_(config.heads),
      side_(side),
      qkv_(scope / "qkv", config.hidden_size, 3 * config.hidden_size, config.qkv_bias),
      proj_(scope / "proj", config.hidden_size, config.hidden_size, true, residual_branch_gain(config.layers)),
      rel_pos_h_(make_relative_table(scope, "rel_pos_h", config, side)),
      rel_pos_w_(make_relative_table(scope, "rel_pos_w", config, side)) {}

/// What is added to the scores: query [squares, side², heads, head_dim] → [squares, heads, side², side²]
at::Tensor SamVitAttention::compute_relative_bias(const at::Tensor& query) const {
  const int64_t squares = query.size(0);
  const at::Tensor by_row = query.view({squares, side_, side_, heads_, -1}).permute({1, 0, 3, 2, 4});
  const at::Tensor by_column = by_row.transpose(0, 3);
  // [side, squares, heads, side, head_dim] → [side, squares, heads, side, side], of which the last are the keys'.
  const auto multiply = [this](const at::Tensor& queries, const at::Tensor& table) {
    return at::bmm(queries.flatten(1, 3), gather_relative_positions(table, side_))
        .view({side_, -1, heads_, side_, side_});
  };
  const at::Tensor row_bias = multiply(by_row, rel_pos_h_).permute({1, 2, 0, 3, 4}).contiguous();
  const at::Tensor column_bias = multiply(by_column, rel_pos_w_).permute({1, 2, 3, 0, 4}).contiguous();
  return (row_bias.unsqueeze(5) + column_bias.unsqueeze(4)).view({squares, heads_, side_ * side_, side_ * side_});
}

at::Tensor SamVitAttention::operator()(const at::Tensor& x) const {
  const at::Tensor rows = qkv_(x).view({-1, side_ * side_, 3, heads_, x.size(1) / heads_});
  const at::Tensor query = rows.select(2, 0), key = rows.select(2, 1), value = rows.select(2, 2);
  const at::Tensor attended = rel_pos_h_.defined()
                                  ? nn::biased_attention(query, key, value, compute_relative_bias(query))
                                  : nn::batched_attention(query, key, value);
  return attended.reshape(x.sizes());
}

SamVitBlock::SamVitBlock(const nn::ParameterScope& scope, const SamVitConfig& config, int64_t window)
    : side_(config.side()),
      window_(window),
      windows_(window == 0 ? 1 : (side_ + window - 1) / window),
      activation_(config.activation),
      norm1_(scope / "layer_norm1", config.hidden_size, config.layer_norm_eps),
      attention_(scope / "attn", config, window == 0 ? side_ : window),
      norm2_(scope / "layer_norm2", config.hidden_size, config.layer_norm_eps),
      lin1_(scope / "mlp" / "lin1", config.hidden_size, config.mlp_dim, true),
      lin2_(scope / "mlp" / "lin2", config.mlp_dim, config.hidden_size, true, residual_branch_gain(config.layers)) {}

/// [pictures · side², hidden] → [pictures · windows² · window², hidden], with zeros beyond the picture: what SAM was
/// trained with, they are keys as any others.
at::Tensor SamVitBlock::window_partition(const at::Tensor& x) const {
  const int64_t padding = windows_ * window_ - side_;
  const at::Tensor images = at::constant_pad_nd(x.view({-1, side_, side_, x.size(1)}), {0, 0, 0, padding, 0, padding});
  return images.view({-1, windows_, window_, windows_, window_, x.size(1)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, x.size(1)});
}

at::Tensor SamVitBlock::window_unpartition(const at::Tensor& x) const {
  return x.view({-1, windows_, windows_, window_, window_, x.size(1)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, windows_ * window_, windows_ * window_, x.size(1)})
      .narrow(1, 0, side_)
      .narrow(2, 0, side_)
      .reshape({-1, x.size(1)});
}

at::Tensor SamVitBlock::operator()(const at::Tensor& x) const {
  const at::Tensor normed = norm1_(x);
  const at::Tensor attention_output =
      window_ == 0 ? attention_(normed) : window_unpartition(attention_(window_partition(normed)));
  const at::Tensor attended = x + attention_.project(attention_output);
  return attended + lin2_(activate(activation_, lin1_(norm2_(attended))));
}

}  // namespace vlmtrain::models
