#include "models/checkpoints/size_limits.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::models {

namespace {

/// Of the weights in `folder`; nothing where there are none that can be read: whoever loads them says why.
std::optional<double> stored_elements(const std::filesystem::path& folder) {
  try {
    const io::CheckpointTensors weights(folder);
    double elements = 0;
    for (const auto& name : weights.names()) {
      const io::TensorInfo& tensor = weights.info(name);
      elements += static_cast<double>(tensor.size_bytes) / static_cast<double>(c10::elementSize(tensor.dtype));
    }
    return elements;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

void check_size(int64_t value, std::string_view key, int64_t most, const std::string& source) {
  if (value >= 1 && value <= most) return;
  throw data_error("{}: {} is {}; a model has from 1 to {}: take the checkpoint's own file", source, key, value, most);
}

int64_t size_of(const nlohmann::json& config, std::string_view key, int64_t fallback, int64_t most,
                const std::string& source) {
  const auto value = io::get_or<int64_t>(config, key, fallback, source);
  check_size(value, key, most, source);
  return value;
}

double number_of(const nlohmann::json& config, std::string_view key, double fallback, NumberRange range,
                 const std::string& source) {
  const auto value = io::get_or<double>(config, key, fallback, source);
  check_number(value, key, range, source);
  return value;
}

void check_number(double value, std::string_view key, NumberRange range, const std::string& source) {
  if (value > range.above && value <= range.most) return;
  throw data_error("{}: {} is {}; a model has more than {:g} and at most {:g}: take the checkpoint's own file", source,
                   key, value, range.above, range.most);
}

nlohmann::json section_of(const nlohmann::json& config, std::string_view key, const std::string& source) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return {};
  if (found->is_object()) return *found;
  throw data_error("{}: {} is {}, where settings with keys belong; take the checkpoint's own file", source, key,
                   io::json_excerpt(*found));
}

void check_elements(double elements, const std::filesystem::path& folder) {
  const auto config = (folder / "config.json").string();
  if (elements > static_cast<double>(kMostElements)) {
    throw data_error("{}: describes a model of {:.3g} parameters, more than any has; take the checkpoint's own file",
                     config, elements);
  }
  // Room for what model.allow_missing and resize_embeddings let differ, and for small models.
  constexpr double kMostTimes = 10;
  constexpr double kAlwaysFine = 1e8;
  if (elements <= kAlwaysFine) return;
  const auto stored = stored_elements(folder);
  if (stored && elements > kMostTimes * *stored) {
    throw data_error(
        "{}: describes a model of {:.3g} parameters, but the weights beside it have {:.3g}; take the config.json that "
        "belongs to them",
        config, elements, *stored);
  }
}

}  // namespace vlmtrain::models
