#include "models/checkpoints/quantized_weights.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kQuantizationKey = "quantization_config";

/// A part of tensor names that only quantized checkpoints have, with the methods that write it.
struct QuantizationMarker {
  std::string_view pattern;
  std::string_view method;
  bool is_suffix;  ///< whether `pattern` must be at the end of the name; else anywhere
};

constexpr std::array kQuantizationMarkers{
    QuantizationMarker{".quant_state.bitsandbytes__", "bitsandbytes", false},
    QuantizationMarker{".absmax", "bitsandbytes", true},
    QuantizationMarker{".nested_absmax", "bitsandbytes", true},
    QuantizationMarker{".quant_map", "bitsandbytes", true},
    QuantizationMarker{".SCB", "bitsandbytes", true},
    QuantizationMarker{".qweight", "GPTQ or AWQ", true},
    QuantizationMarker{".qzeros", "GPTQ or AWQ", true},
    QuantizationMarker{"weight_scale_inv", "FP8", true},
    QuantizationMarker{".weight_packed", "compressed-tensors", true},
    QuantizationMarker{".weight_zero_point", "compressed-tensors", true},
    QuantizationMarker{"weight_scale", "FP8 or INT8", true},
    QuantizationMarker{"weight_scale_2", "NVFP4", true},
    QuantizationMarker{".weight_global_scale", "NVFP4", true},
    QuantizationMarker{".weight_scales", "EETQ", true},
    QuantizationMarker{".input_scale", "FP8", true},
    QuantizationMarker{".weight._data", "quanto", true},
    QuantizationMarker{".weight._scale", "quanto", true},
    QuantizationMarker{".W_q", "HQQ", true},
    QuantizationMarker{"weight_qdata", "torchao", true},
    QuantizationMarker{".weight:qdata", "torchao", true},
    QuantizationMarker{"proj_blocks", "MXFP4", true},
    QuantizationMarker{"proj_scales", "MXFP4", true},
    QuantizationMarker{".codebooks", "AQLM", true},
    QuantizationMarker{".centroids", "VPTQ", true},
    QuantizationMarker{".dense_weights", "SpQR", true},
};

/// Config files of older quantization programs, with the method.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kQuantizationConfigFiles{
    {{"quantize_config.json", "GPTQ"}, {"quant_config.json", "AWQ"}, {"hf_quant_config.json", "ModelOpt"}}};

const QuantizationMarker* find_quantization_marker(std::string_view name) {
  const auto* const it = std::ranges::find_if(kQuantizationMarkers, [&](const QuantizationMarker& marker) {
    return marker.is_suffix ? name.ends_with(marker.pattern) : name.find(marker.pattern) != std::string_view::npos;
  });
  return it == kQuantizationMarkers.end() ? nullptr : it;
}

std::string find_string_value(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

/// Returns, for example, "fp8" or "compressed-tensors (pack-quantized)".
std::string describe_quantization_method(const json& section) {
  if (!section.is_object()) return "";
  std::string method;
  for (const char* key : {"quant_method", "quant_algo", "quant_type", "method"}) {
    if (method.empty()) method = find_string_value(section, key);
  }
  if (method.empty()) method = "an unnamed method";
  const std::string format = find_string_value(section, "format");
  return make_excerpt(format.empty() ? method : method + " (" + format + ")", 60);
}

/// Quantization method and the file that declares it.
struct DeclaredQuantization {
  std::string method;
  std::string source;
};

std::optional<DeclaredQuantization> find_quantization_method(const json& config, const fs::path& folder) {
  if (const std::string source = find_quantization_config(config); !source.empty()) {
    const bool is_top_level = source == kQuantizationKey;
    const json& section = is_top_level ? config : config[source.substr(0, source.find('.'))];
    return DeclaredQuantization{describe_quantization_method(section[kQuantizationKey]), source + " in config.json"};
  }
  for (const auto& [file, method] : kQuantizationConfigFiles) {
    std::error_code error;
    if (fs::exists(folder / file, error)) return DeclaredQuantization{std::string(method), std::string(file)};
  }
  return std::nullopt;
}

[[noreturn]] void throw_quantized_checkpoint_error(const fs::path& folder, const std::string& method,
                                                   const std::string& evidence) {
  throw data_error(
      "{}: its weights are quantized with {} ({}), which is not supported; use the original checkpoint in BF16, F16 or "
      "F32, and set {}=nf4 or int8 to train LoRA on quantized weights",
      folder.string(), method, evidence, keys::model::kQuantization);
}

/// Returns whether the tensor is an integer buffer that unquantized checkpoints may have.
bool is_integer_buffer(std::string_view name) {
  return name.ends_with("position_ids") || name.ends_with("num_batches_tracked") || name.ends_with("_index");
}

/// Evidence of quantization in the headers of the weights.
struct QuantizationEvidence {
  bool has_unreadable_dtypes = false;  ///< headers have dtypes that only quantized weights use
  /// Tensor that only quantized checkpoints have, with its methods; empty: no such tensor.
  std::string quantized_tensor_name;
  std::string method;
  std::string integer_tensor_name;  ///< integer tensor that may be a weight; empty: no such tensor
};

QuantizationEvidence find_quantization_evidence(const fs::path& folder) {
  QuantizationEvidence evidence;
  try {
    const io::CheckpointTensors weights(folder);
    for (const auto& name : weights.names()) {
      const at::ScalarType dtype = weights.info(name).dtype;
      const QuantizationMarker* const marker = find_quantization_marker(name);
      if (evidence.quantized_tensor_name.empty() && (marker != nullptr || c10::isFloat8Type(dtype))) {
        evidence.quantized_tensor_name = name;
        evidence.method = marker != nullptr ? marker->method : io::to_safetensors_dtype(dtype);
      }
      const bool is_integer = !c10::isFloatingType(dtype) && !is_integer_buffer(name);
      if (evidence.integer_tensor_name.empty() && is_integer) evidence.integer_tensor_name = name;
    }
  } catch (const UserError&) {
    const auto exists = [&](const char* file) { return fs::exists(folder / file); };
    evidence.has_unreadable_dtypes = exists("model.safetensors") || exists("model.safetensors.index.json");
  }
  return evidence;
}

}  // namespace

std::string find_quantization_config(const json& config) {
  if (!config.is_object()) return "";
  const auto has_quantization_section = [](const json& section) {
    const auto it = section.find(kQuantizationKey);
    return it != section.end() && it->is_object() && !it->empty();
  };
  if (has_quantization_section(config)) return kQuantizationKey;
  for (const auto& [key, section] : config.items()) {
    if (section.is_object() && has_quantization_section(section)) return key + "." + kQuantizationKey;
  }
  return "";
}

bool erase_quantization_config(nlohmann::ordered_json& config) {
  bool was_erased = config.is_object() && config.erase(kQuantizationKey) > 0;
  for (auto& section : config) {
    if (section.is_object() && section.erase(kQuantizationKey) > 0) was_erased = true;
  }
  return was_erased;
}

void reject_quantized_weights(const json& config, const fs::path& folder) {
  static WeightFileCache<QuantizationEvidence> cache;
  const auto declared_method = find_quantization_method(config, folder);
  const QuantizationEvidence evidence =
      cache.get_or_compute(folder, [&] { return find_quantization_evidence(folder); });
  // Files that are unreadable for other reasons are reported when they are loaded.
  if (evidence.has_unreadable_dtypes && declared_method)
    throw_quantized_checkpoint_error(folder, declared_method->method, declared_method->source);
  const std::string tensor = !evidence.quantized_tensor_name.empty() || !declared_method
                                 ? evidence.quantized_tensor_name
                                 : evidence.integer_tensor_name;
  if (tensor.empty()) return;
  throw_quantized_checkpoint_error(folder, declared_method ? declared_method->method : evidence.method,
                                   declared_method ? fmt::format("{}, tensor {}", declared_method->source, tensor)
                                                   : fmt::format("tensor {}", tensor));
}

void reject_quantized_model(const VisionLanguageModel& model, const std::filesystem::path& out) {
  if (model.parameters().quantization() == nn::Quantization::kNone) return;
  throw usage_error(
      "{}: the weights of the model are quantized ({}), so they cannot be saved as a checkpoint; save the adapter, and "
      "merge it with the base weights (vlmtrain merge)",
      out.string(), keys::model::kQuantization);
}

}  // namespace vlmtrain::models
