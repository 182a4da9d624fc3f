#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/nn/component.h"

namespace vlmtrain::nn {

/// Low-rank adaptation of Linears (Hu et al. 2021, arXiv 2106.09685), in the terms of PEFT's LoraConfig:
/// y = W x + b + scale · B A dropout(x), with W and b as they are, A [rank, in] and B [out, rank] trained.
struct LoraSettings {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;       ///< share of an adapter's inputs that a training pass sets to zero
  bool use_rslora = false;  ///< scale by alpha / √rank (Kalajdzievski 2023, arXiv 2312.03732)
  bool use_dora = false;    ///< train the length of each row of W + scale · B A (Liu et al. 2024, arXiv 2402.09353)
  /// Each is `all-linear`, the last names of a Linear's path (`q_proj`, `mlp.fc1`) or, where it holds one of
  /// *+?()[]{}|\^$, a regular expression (PCRE2) of the whole path. The output projection is no Linear here.
  std::vector<std::string> target_modules{"all-linear"};
  /// Modules, by the last names of their path (`multi_modal_projector`, `embed_tokens`), whose own parameters are
  /// trained and kept with the adapter; their Linears get none.
  std::vector<std::string> modules_to_save{};
  std::vector<Component> excluded_components{};  ///< components whose Linears get no adapters, whatever matches
  std::filesystem::path adapter{};               ///< the adapter that this was read from; empty: the configuration
  /// Whether the output projection has values of its own although the base's config.json ties it to the embedding.
  bool unties_output = false;
  int64_t vocabulary_rows = 0;  ///< rows of embedding and output, where they are more than the base's; else 0

  /// What B A is multiplied by: alpha / rank, or alpha / √rank.
  double scale() const;
  /// Whether a parameter is one of modules_to_save.
  bool is_module_to_save(std::string_view parameter) const;
};

/// Whether `path` goes through the names of `module`: `model.connector.proj.weight` does through `connector` and
/// through `connector.proj`.
bool is_under_module(std::string_view path, std::string_view module);

/// One entry of LoraSettings::target_modules.
class LoraTarget {
 public:
  /// Throws UserError (kUsage) for a regular expression that is none.
  explicit LoraTarget(std::string text);

  /// Of a Linear's path, such as `model.text_model.layers.0.self_attn.q_proj`. Throws UserError (kUsage) where a
  /// regular expression takes too long.
  bool matches(const std::string& path) const { return matches_(path); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::function<bool(const std::string& path)> matches_;
};

}  // namespace vlmtrain::nn
