#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <string_view>

namespace vlmtrain::models {

/// Returns whether both tables have the same values, up to rounding in the type of `stored`.
bool is_close(const at::Tensor& stored, const at::Tensor& computed);

/// Returns whether a table of is_computed_table() has the values that older transformers wrote: positions 0, 1, 2, …,
/// or rotary frequencies theta^(-i/n) for a theta of `config`, the content of config.json.
bool is_default_table(std::string_view name, const at::Tensor& table, const nlohmann::json& config);

}  // namespace vlmtrain::models
