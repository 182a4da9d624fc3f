#include "models/network/mask/sam_vit/sam_vit_block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>

#include "models/network/block_list.h"
#include "vlmtrain/nn/biased_attention.h"

namespace vlmtrain::models {

namespace {

at::Tensor distance_table(const nn::ParameterScope& scope, const char* name, const SamVitConfig& config, int64_t side) {
  if (!config.relative_positions) return {};
  return scope.parameter(name, {2 * side - 1, config.hidden_size / config.heads}, nn::InitialValues::zeros());
}

/// [2 · side − 1, head_dim] → [side, head_dim, side], whose entry [i, :, j] is the row for the distance i − j.
at::Tensor by_places(const at::Tensor& table, int64_t side) {
  return table.unfold(0, side, 1).flip(2);
}

}  // namespace

SamVitAttention::SamVitAttention(const nn::ParameterScope& scope, const SamVitConfig& config, int64_t side)
    : heads_(config.heads),
      side_(side),
      query_key_value_(scope / "qkv", config.hidden_size, 3 * config.hidden_size, config.query_key_value_bias),
      proj_(scope / "proj", config.hidden_size, config.hidden_size, true, residual_branch_gain(config.layers)),
      distances_down_(distance_table(scope, "rel_pos_h", config, side)),
      distances_across_(distance_table(scope, "rel_pos_w", config, side)) {}

/// What is added to the scores: query [squares, side², heads, head_dim] → [squares, heads, side², side²]
at::Tensor SamVitAttention::relative_positions(const at::Tensor& query) const {
  const int64_t squares = query.size(0);
  const at::Tensor by_row = query.view({squares, side_, side_, heads_, -1}).permute({1, 0, 3, 2, 4});
  const at::Tensor by_column = by_row.transpose(0, 3);
  // [side, squares, heads, side, head_dim] → [side, squares, heads, side, side], of which the last are the keys'.
  const auto product = [this](const at::Tensor& queries, const at::Tensor& table) {
    return at::bmm(queries.flatten(1, 3), by_places(table, side_)).view({side_, -1, heads_, side_, side_});
  };
  const at::Tensor down = product(by_row, distances_down_).permute({1, 2, 0, 3, 4}).contiguous();
  const at::Tensor across = product(by_column, distances_across_).permute({1, 2, 3, 0, 4}).contiguous();
  return (down.unsqueeze(5) + across.unsqueeze(4)).view({squares, heads_, side_ * side_, side_ * side_});
}

at::Tensor SamVitAttention::operator()(const at::Tensor& x) const {
  const at::Tensor rows = query_key_value_(x).view({-1, side_ * side_, 3, heads_, x.size(1) / heads_});
  const at::Tensor query = rows.select(2, 0), key = rows.select(2, 1), value = rows.select(2, 2);
  const at::Tensor attended = distances_down_.defined()
                                  ? nn::biased_attention(query, key, value, relative_positions(query))
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
at::Tensor SamVitBlock::into_windows(const at::Tensor& x) const {
  const int64_t beyond = windows_ * window_ - side_;
  const at::Tensor pictures = at::constant_pad_nd(x.view({-1, side_, side_, x.size(1)}), {0, 0, 0, beyond, 0, beyond});
  return pictures.view({-1, windows_, window_, windows_, window_, x.size(1)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, x.size(1)});
}

at::Tensor SamVitBlock::out_of_windows(const at::Tensor& x) const {
  return x.view({-1, windows_, windows_, window_, window_, x.size(1)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, windows_ * window_, windows_ * window_, x.size(1)})
      .narrow(1, 0, side_)
      .narrow(2, 0, side_)
      .reshape({-1, x.size(1)});
}

at::Tensor SamVitBlock::operator()(const at::Tensor& x) const {
  const at::Tensor normed = norm1_(x);
  const at::Tensor seen = window_ == 0 ? attention_(normed) : out_of_windows(attention_(into_windows(normed)));
  const at::Tensor attended = x + attention_.project(seen);
  return attended + lin2_(activate(activation_, lin1_(norm2_(attended))));
}

}  // namespace vlmtrain::models
