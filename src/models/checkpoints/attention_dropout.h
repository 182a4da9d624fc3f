#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace vlmtrain::models {

/// data_error where `config`, of a text model or a tower, has an attention_dropout: transformers drops attention
/// weights then in training. No release has one, and none is done here.
void refuse_attention_dropout(const nlohmann::json& config, const std::string& source);

}  // namespace vlmtrain::models
