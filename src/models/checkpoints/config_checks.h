#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace vlmtrain::models {

// What no model has is refused when its config is read, before any of it becomes memory. The limits lie one or two
// orders of magnitude beyond the largest models there are, and keep every product of two sizes within 63 bits.
inline constexpr int64_t kMaxBlocks = 10'000;
inline constexpr int64_t kMaxLayerWidth = 1 << 22;           ///< features of a layer, hidden or in between
inline constexpr int64_t kMaxVocabSize = 1 << 26;            ///< of a vocabulary
inline constexpr int64_t kMaxImageSide = 1 << 14;            ///< pixels on a side
inline constexpr int64_t kMaxPositions = int64_t{1} << 40;   ///< of a sequence, and of a window of it
inline constexpr int64_t kMaxParameters = int64_t{1} << 43;  ///< of a model, 8.8 trillion

/// The whole number under `key`, `fallback` where it is absent or null; data_error where it is not from 1 to `max`.
int64_t read_size(const nlohmann::json& config, std::string_view key, int64_t fallback, int64_t max,
                  const std::string& source);

/// What a number of a config may be: above `above`, and at most `max`.
struct NumberRange {
  double above = 0;
  double max = 1;
};

inline constexpr NumberRange kNormEpsRange{0, 1};
inline constexpr NumberRange kRopeThetaRange{1, 1e18};

/// The number under `key`, `fallback` where it is absent or null; data_error where it is not in `range`.
double read_number(const nlohmann::json& config, std::string_view key, double fallback, NumberRange range,
                   const std::string& source);

/// data_error where `value`, called `key`, is not in `range`.
void check_number(double value, std::string_view key, NumberRange range, const std::string& source);

/// The object under `key`, null where it is absent or null; data_error where it is something else.
nlohmann::json get_section(const nlohmann::json& config, std::string_view key, const std::string& source);

/// data_error where `value`, called `key`, is not from 1 to `max`.
void check_size(int64_t value, std::string_view key, int64_t max, const std::string& source);

/// data_error where a model of `num_parameters` parameters, as config.json describes it, is larger than any, or many
/// times larger than the weights that lie beside it. Without weights, or with such as cannot be read, the first alone
/// counts.
void check_parameter_count(double num_parameters, const std::filesystem::path& folder);

/// data_error where `config`, of a text model or a tower, has an attention_dropout: transformers drops attention
/// weights then in training. No release has one, and none is done here.
void refuse_attention_dropout(const nlohmann::json& config, const std::string& source);

}  // namespace vlmtrain::models
