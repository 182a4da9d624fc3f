#include "models/checkpoints/quantized_weights.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "models/checkpoints/weight_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/dtype_name.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kKey = "quantization_config";

/// A name that only quantized checkpoints have, and the methods that write it.
struct Marker {
  std::string_view part;
  std::string_view method;
  bool is_end;  ///< of a tensor's name
};

constexpr std::array kMarkers{
    Marker{".quant_state.bitsandbytes__", "bitsandbytes", false},
    Marker{".absmax", "bitsandbytes", true},
    Marker{".nested_absmax", "bitsandbytes", true},
    Marker{".quant_map", "bitsandbytes", true},
    Marker{".SCB", "bitsandbytes", true},
    Marker{".qweight", "GPTQ or AWQ", true},
    Marker{".qzeros", "GPTQ or AWQ", true},
    Marker{"weight_scale_inv", "FP8", true},
    Marker{".weight_packed", "compressed-tensors", true},
    Marker{".weight_zero_point", "compressed-tensors", true},
    Marker{"weight_scale", "FP8 or INT8", true},
    Marker{"weight_scale_2", "NVFP4", true},
    Marker{".weight_global_scale", "NVFP4", true},
    Marker{".weight_scales", "EETQ", true},
    Marker{".input_scale", "FP8", true},
    Marker{".weight._data", "quanto", true},
    Marker{".weight._scale", "quanto", true},
    Marker{".W_q", "HQQ", true},
    Marker{"weight_qdata", "torchao", true},
    Marker{".weight:qdata", "torchao", true},
    Marker{"proj_blocks", "MXFP4", true},
    Marker{"proj_scales", "MXFP4", true},
    Marker{".codebooks", "AQLM", true},
    Marker{".centroids", "VPTQ", true},
    Marker{".dense_weights", "SpQR", true},
};

/// Files of older programs next to config.json.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kFiles{
    {{"quantize_config.json", "GPTQ"}, {"quant_config.json", "AWQ"}, {"hf_quant_config.json", "ModelOpt"}}};

const Marker* marker_of(std::string_view name) {
  const auto* const found = std::ranges::find_if(kMarkers, [&](const Marker& marker) {
    return marker.is_end ? name.ends_with(marker.part) : name.find(marker.part) != std::string_view::npos;
  });
  return found == kMarkers.end() ? nullptr : found;
}

std::string text_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// "fp8", "compressed-tensors (pack-quantized)".
std::string method_in(const json& section) {
  if (!section.is_object()) return "";
  std::string method;
  for (const char* key : {"quant_method", "quant_algo", "quant_type", "method"}) {
    if (method.empty()) method = text_at(section, key);
  }
  if (method.empty()) method = "an unnamed method";
  const std::string format = text_at(section, "format");
  return excerpt(format.empty() ? method : method + " (" + format + ")", 60);
}

/// A method and where it is named.
struct NamedMethod {
  std::string method;
  std::string place;
};

std::optional<NamedMethod> named_method(const json& config, const fs::path& folder) {
  if (const std::string place = find_quantization_config(config); !place.empty()) {
    const bool is_top = place == kKey;
    const json& section = is_top ? config : config[place.substr(0, place.find('.'))];
    return NamedMethod{method_in(section[kKey]), place + " in config.json"};
  }
  for (const auto& [file, method] : kFiles) {
    std::error_code error;
    if (fs::exists(folder / file, error)) return NamedMethod{std::string(method), std::string(file)};
  }
  return std::nullopt;
}

[[noreturn]] void refuse(const fs::path& folder, const std::string& method, const std::string& evidence) {
  throw data_error(
      "{}: its weights are quantized by {} ({}), which is not read; take the checkpoint that they were made from, in "
      "BF16, F16 or F32, and set model.quantization=nf4 or int8 to train LoRA on quantized weights",
      folder.string(), method, evidence);
}

bool is_table_of_integers(std::string_view name) {
  return name.ends_with("position_ids") || name.ends_with("num_batches_tracked") || name.ends_with("_index");
}

/// What the headers of the weights show.
struct Traces {
  bool is_unreadable = false;  ///< as with types that only quantized weights have
  std::string quantized;       ///< a tensor that only quantized checkpoints have, and what it shows; empty: none
  std::string method;
  std::string integers;  ///< a tensor of integers that may be weights; empty: none
};

Traces find_traces(const fs::path& folder) {
  Traces traces;
  try {
    const io::CheckpointTensors weights(folder);
    for (const auto& name : weights.names()) {
      const at::ScalarType dtype = weights.info(name).dtype;
      const Marker* const marker = marker_of(name);
      if (traces.quantized.empty() && (marker != nullptr || c10::isFloat8Type(dtype))) {
        traces.quantized = name;
        traces.method = marker != nullptr ? marker->method : io::dtype_name(dtype);
      }
      const bool is_integer = !c10::isFloatingType(dtype) && !is_table_of_integers(name);
      if (traces.integers.empty() && is_integer) traces.integers = name;
    }
  } catch (const UserError&) {
    const auto exists = [&](const char* file) { return fs::exists(folder / file); };
    traces.is_unreadable = exists("model.safetensors") || exists("model.safetensors.index.json");
  }
  return traces;
}

}  // namespace

std::string find_quantization_config(const json& config) {
  if (!config.is_object()) return "";
  const auto has_one = [](const json& section) {
    const auto found = section.find(kKey);
    return found != section.end() && found->is_object() && !found->empty();
  };
  if (has_one(config)) return kKey;
  for (const auto& [key, section] : config.items()) {
    if (section.is_object() && has_one(section)) return key + "." + kKey;
  }
  return "";
}

bool erase_quantization_config(nlohmann::ordered_json& config) {
  bool found = config.is_object() && config.erase(kKey) > 0;
  for (auto& section : config) {
    if (section.is_object() && section.erase(kKey) > 0) found = true;
  }
  return found;
}

void refuse_quantized_weights(const json& config, const fs::path& folder) {
  static WeightFindings<Traces> known;
  const auto named = named_method(config, folder);
  const Traces traces = known.get(folder, [&] { return find_traces(folder); });
  // Where the files cannot be read for another reason, whoever loads them says so.
  if (traces.is_unreadable && named) refuse(folder, named->method, named->place);
  const std::string tensor = !traces.quantized.empty() || !named ? traces.quantized : traces.integers;
  if (tensor.empty()) return;
  refuse(folder, named ? named->method : traces.method,
         named ? fmt::format("{}, tensor {}", named->place, tensor) : fmt::format("tensor {}", tensor));
}

}  // namespace vlmtrain::models
