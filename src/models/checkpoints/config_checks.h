#pragma once

#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

/// Returns a UserError (kBadData) with the formatted message and the advice to use the checkpoint's
/// own file. The message begins with the file.
template <class... Args>
UserError config_error(fmt::format_string<Args...> format, Args&&... args) {
  return data_error("{}; use the checkpoint's own file", fmt::format(format, std::forward<Args>(args)...));
}

// Limits on sizes in configs, checked before anything is allocated. They are one or two orders of
// magnitude above the largest existing models. The product of two sizes fits into 63 bits.
inline constexpr int64_t kMaxBlocks = 10'000;
inline constexpr int64_t kMaxLayerWidth = 1 << 22;           ///< features of a layer
inline constexpr int64_t kMaxVocabSize = 1 << 26;            ///< rows of an embedding
inline constexpr int64_t kMaxImageSide = 1 << 14;            ///< pixels
inline constexpr int64_t kMaxPositions = int64_t{1} << 40;   ///< positions of a sequence or an attention window
inline constexpr int64_t kMaxParameters = int64_t{1} << 43;  ///< parameters of a model: 8.8 trillion

/// Returns the integer under `key`; `fallback` if it is absent or null. `source` names the file in
/// errors, here and below. Throws UserError (kBadData) if the result is not from 1 to `max`.
int64_t read_size(const nlohmann::json& config, std::string_view key, int64_t fallback, int64_t max,
                  const std::string& source);

/// Does the same for a number that may be 0.
int64_t read_count(const nlohmann::json& config, std::string_view key, int64_t fallback, int64_t max,
                   const std::string& source);

/// The valid values of a number: greater than `exclusive_min`, at most `max`.
struct NumberRange {
  double exclusive_min = 0;
  double max = 1;
};

inline constexpr NumberRange kNormEpsRange{0, 1};
inline constexpr NumberRange kRopeThetaRange{1, 1e18};

/// Returns the number under `key`; `fallback` if it is absent or null. Throws UserError (kBadData)
/// if it is not in `range`.
double read_number(const nlohmann::json& config, std::string_view key, double fallback, NumberRange range,
                   const std::string& source);

/// Throws UserError (kBadData) if `value`, named `key`, is not in `range`.
void check_number(double value, std::string_view key, NumberRange range, const std::string& source);

/// Returns the object under `key`; a null value if it is absent or null. Throws UserError
/// (kBadData) for other types.
nlohmann::json get_section(const nlohmann::json& config, std::string_view key, const std::string& source);

/// Throws UserError (kBadData) if `value`, named `key`, is not from 1 to `max`.
void check_size(int64_t value, std::string_view key, int64_t max, const std::string& source);

/// Throws UserError (kBadData) if a model of `num_parameters` parameters exceeds kMaxParameters or
/// is more than ten times larger than the weights in `folder`. The second check is skipped for
/// small models and if the weights are missing or unreadable.
void check_parameter_count(double num_parameters, const std::filesystem::path& folder);

/// Throws UserError (kBadData) if `config`, of a text model or a tower, has an attention_dropout
/// other than 0. It is not implemented, since no published model uses it.
void reject_attention_dropout(const nlohmann::json& config, const std::string& source);

/// Returns the content of config.json in a checkpoint folder. Throws UserError (kBadData) with
/// advice if `folder` is not a checkpoint but a name on the Hugging Face Hub, a GGUF or weights
/// file, the folder of a run, or a folder of the Hub's cache.
nlohmann::json read_model_config(const std::filesystem::path& folder);

/// Returns the result of `function`, which reads JSON files of the checkpoint in `folder`. Converts
/// exceptions of the JSON library, which it throws for values of unexpected types, to UserError
/// (kBadData).
template <class Function>
auto rethrow_json_errors(const std::filesystem::path& folder, const Function& function) {
  try {
    return function();
  } catch (const nlohmann::json::exception& error) {
    throw data_error(
        "{}: config.json or a file next to it is invalid for this kind of checkpoint ({}); download it again",
        folder.string(), io::describe_json_exception(error));
  }
}

}  // namespace vlmtrain::models
