#include "models/checkpoints/config_checks.h"

#include <c10/core/ScalarType.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

/// Returns the number of parameters stored in `folder`; nothing if the weights are unreadable.
/// Loading them reports the error.
std::optional<double> count_stored_parameters(const std::filesystem::path& folder) {
  try {
    const io::CheckpointTensors weights(folder);
    double num_parameters = 0;
    for (const auto& name : weights.names()) {
      const io::TensorInfo& tensor = weights.info(name);
      num_parameters += static_cast<double>(tensor.size_bytes) / static_cast<double>(c10::elementSize(tensor.dtype));
    }
    return num_parameters;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

void check_size(int64_t value, std::string_view key, int64_t max, const std::string& source) {
  if (value >= 1 && value <= max) return;
  throw data_error("{}: {} is {}; it must be from 1 to {}: use the checkpoint's own file", source, key, value, max);
}

int64_t read_size(const nlohmann::json& config, std::string_view key, int64_t fallback, int64_t max,
                  const std::string& source) {
  const auto value = io::get_or<int64_t>(config, key, fallback, source);
  check_size(value, key, max, source);
  return value;
}

double read_number(const nlohmann::json& config, std::string_view key, double fallback, NumberRange range,
                   const std::string& source) {
  const auto value = io::get_or<double>(config, key, fallback, source);
  check_number(value, key, range, source);
  return value;
}

void check_number(double value, std::string_view key, NumberRange range, const std::string& source) {
  if (value > range.exclusive_min && value <= range.max) return;
  throw data_error("{}: {} is {}; it must be above {:g} and at most {:g}: use the checkpoint's own file", source, key,
                   value, range.exclusive_min, range.max);
}

nlohmann::json get_section(const nlohmann::json& config, std::string_view key, const std::string& source) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return {};
  if (it->is_object()) return *it;
  throw data_error("{}: {} is {}, not an object; use the checkpoint's own file", source, key,
                   io::make_json_excerpt(*it));
}

void check_parameter_count(double num_parameters, const std::filesystem::path& folder) {
  const auto config = (folder / "config.json").string();
  if (num_parameters > static_cast<double>(kMaxParameters)) {
    throw data_error("{}: describes a model of {:.3g} parameters, which is implausible; use the checkpoint's own file",
                     config, num_parameters);
  }
  // Tolerates weights that model.allow_missing and resize_embeddings add, and the large relative
  // error of the estimate for small models. Not tuned.
  constexpr double kMaxDescribedToStoredRatio = 10;
  constexpr double kMaxUncheckedParameters = 1e8;  // such a model fits into memory even if the config is wrong
  if (num_parameters <= kMaxUncheckedParameters) return;
  const auto num_stored_parameters = count_stored_parameters(folder);
  if (num_stored_parameters && num_parameters > kMaxDescribedToStoredRatio * *num_stored_parameters) {
    throw data_error(
        "{}: describes a model of {:.3g} parameters, but the weights next to it have {:.3g}; use the config.json that "
        "belongs to them",
        config, num_parameters, *num_stored_parameters);
  }
}

void reject_attention_dropout(const nlohmann::json& config, const std::string& source) {
  const auto it = config.find("attention_dropout");
  if (it == config.end() || it->is_null() || (it->is_number() && it->get<double>() == 0)) return;
  throw data_error("{}: attention_dropout is {}: attention dropout is not supported; set it to 0.0", source,
                   io::make_json_excerpt(*it));
}

}  // namespace vlmtrain::models
