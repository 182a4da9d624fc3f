#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

/// The storage format of the frozen weights of Linears. Both formats are those of bitsandbytes.
enum class Quantization {
  kNone,
  kNf4,   ///< 4-bit NormalFloat with double quantization (Dettmers et al. 2023, QLoRA, arXiv 2305.14314)
  kInt8,  ///< row-wise int8 of LLM.int8 (Dettmers et al. 2022, arXiv 2208.07339), without outlier columns
};

/// Returns the names that the configuration and `--quantization` use.
inline const std::vector<std::pair<std::string, Quantization>>& get_quantization_names() {
  static const std::vector<std::pair<std::string, Quantization>> names{
      {"none", Quantization::kNone}, {"nf4", Quantization::kNf4}, {"int8", Quantization::kInt8}};
  return names;
}

/// Returns the name in get_quantization_names().
inline std::string to_string(Quantization quantization) {
  for (const auto& [name, value] : get_quantization_names()) {
    if (value == quantization) return name;
  }
  throw InternalError("unknown quantization");
}

/// The memory that holds weights.
enum class MemoryPlacement : uint8_t {
  kDevice,
  kHost,  ///< host memory, which the device reads (memory::HostArena)
};

/// Returns the name that the configuration uses.
inline std::string to_string(MemoryPlacement placement) {
  return placement == MemoryPlacement::kHost ? "host" : "device";
}

/// The part of a vision-language model that a parameter belongs to. Freezing and learning rates are
/// chosen by component.
enum class Component {
  kVisionTower,
  kProjector,
  kLanguageModel,
  kMaskEncoder,  ///< encodes images for mask prediction
  kMaskDecoder,  ///< predicts masks from image features and hidden states
  kBuffer,       ///< never trained: batch norm statistics
  kUnused,       ///< in the checkpoint but never run (CLIP's last block in LLaVA); saved unchanged, never trained
};

/// Returns whether a parameter of this component may be trained.
constexpr bool is_trainable(Component component) {
  return component != Component::kBuffer && component != Component::kUnused;
}

/// Low-rank adaptation of Linears (Hu et al. 2021, arXiv 2106.09685), named as in PEFT's
/// LoraConfig: y = W x + b + scale · B A dropout(x). W and b are frozen; A [rank, in] and B [out,
/// rank] are trained.
struct LoraSettings {
  int64_t rank = 8;
  double alpha = 16;        ///< see scale()
  double dropout = 0;       ///< dropout probability of an adapter's input
  bool use_rslora = false;  ///< scale by alpha / √rank (Kalajdzievski 2023, arXiv 2312.03732)
  bool use_dora = false;  ///< also trains the norm of each row of W + scale · B A (Liu et al. 2024, arXiv 2402.09353)
  /// The Linears that get adapters. Each entry is `all-linear`, the last components of a Linear's
  /// path (`q_proj`, `mlp.fc1`), or a regular expression (PCRE2) that matches the whole path. An
  /// entry that contains one of *+?()[]{}|\^$ is a regular expression. The output projection
  /// (lm_head) is not a Linear here.
  std::vector<std::string> target_modules{"all-linear"};
  /// Modules, by the last components of their path (`multi_modal_projector`, `embed_tokens`), whose
  /// own parameters are trained and saved with the adapter. Their Linears get no adapters.
  std::vector<std::string> modules_to_save{};
  std::vector<Component> excluded_components{};  ///< their Linears get no adapters
  std::filesystem::path
      adapter{};  ///< folder of the adapter that these settings were read from; empty if from the configuration
  /// Whether the output projection has its own values although the base model's config.json ties it
  /// to the embedding.
  bool unties_output = false;
  int64_t vocabulary_rows = 0;  ///< rows of embedding and output projection if more than the base model's; else 0

  /// Returns the factor of B A: alpha / rank, or alpha / √rank.
  double scale() const;
  /// Returns whether the parameter with this name belongs to one of modules_to_save.
  bool matches_modules_to_save(std::string_view parameter) const;
};

/// A matcher for one entry of LoraSettings::target_modules.
class LoraTarget {
 public:
  /// Throws UserError (kUsage) if `pattern` is an invalid regular expression.
  explicit LoraTarget(std::string pattern);

  /// Returns whether the path of a Linear matches, such as
  /// `model.text_model.layers.0.self_attn.q_proj`. Throws UserError (kUsage) if the regular
  /// expression exceeds its step limit.
  bool matches(const std::string& path) const { return matches_(path); }
  const std::string& pattern() const { return pattern_; }

 private:
  std::string pattern_;
  std::function<bool(const std::string& path)> matches_;
};

/// Returns whether `path` contains the components of `module` consecutively:
/// `model.connector.proj.weight` contains `connector` and `connector.proj`.
bool is_under_module(std::string_view path, std::string_view module);

/// Returns whether a pattern of names is a regular expression: it contains one of *+?()[]{}|\^$.
bool is_regular_expression(std::string_view pattern);

/// Returns a function that matches whole names with a regular expression (PCRE2). Throws UserError
/// (kUsage) for an invalid expression, and the function throws it for one that exceeds its step
/// limit. Messages name the option `key` and suggest to list `alternative`.
std::function<bool(const std::string& name)> make_regular_expression_matcher(const std::string& key,
                                                                             const std::string& expression,
                                                                             const std::string& alternative);

/// A pattern of parameter names: consecutive components of the name (`embed_tokens`, `bias`,
/// `layers.0`), or a regular expression for the whole name.
class NamePattern {
 public:
  /// `key` is the option that messages name. Throws UserError (kUsage) for an invalid regular
  /// expression.
  NamePattern(std::string_view key, std::string text);

  /// Returns whether the name of a parameter matches. Throws UserError (kUsage) if the regular
  /// expression exceeds its step limit.
  bool matches(const std::string& name) const { return matches_(name); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::function<bool(const std::string& name)> matches_;
};

}  // namespace vlmtrain::nn
