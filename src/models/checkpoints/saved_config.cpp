#include "models/checkpoints/saved_config.h"

#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/tied_output.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::models {

namespace {

const char* get_config_dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      throw InternalError("weights of an unknown dtype");
  }
}

}  // namespace

std::string make_saved_config(const VisionLanguageModel& model, const std::string& content, const std::string& source,
                              std::optional<at::ScalarType> dtype) {
  auto config = io::parse_ordered_json(content, source);
  if (dtype) config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = get_config_dtype_name(*dtype);
  erase_quantization_config(config);
  set_tied_output(config, has_tied_output(model));
  model.complete_config(config);
  return io::to_json_string(config, 2) + "\n";
}

}  // namespace vlmtrain::models
