#include "vlmtrain/models/checkpoint_info.h"

#include "models/checkpoints/config_keys.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/read_model_config.h"
#include "models/checkpoints/tied_output.h"
#include "models/family.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models {

std::vector<std::string> list_checkpoint_warnings(const std::filesystem::path& folder) {
  const std::string file = (folder / "config.json").string();
  const auto config = read_model_config(folder);
  std::vector<std::string> warnings = rethrow_json_errors(folder, [&] {
    std::vector<std::string> result;
    const Family& family = find_family(config, folder);
    if (reconcile_tied_output(config, family, folder) != config) {
      const auto tensors = find_output_tensor_names(io::read_checkpoint_tensor_names(folder));
      result.push_back(fmt::format(
          "{}: {} ties {} to {}, but their values differ in the weights; both are loaded, trained and "
          "saved, and saved checkpoints have {}: false",
          file, get_tie_config_key(config), tensors->output, tensors->embedding, get_tie_config_key(config)));
    }
    return result;
  });
  if (const std::string section = find_quantization_config(config); !section.empty()) {
    warnings.push_back(
        fmt::format("{}: {} describes quantized weights, but the weights in the folder are not quantized; it is "
                    "ignored and not saved",
                    file, section));
  }
  for (auto& warning : list_unread_config_keys(config, file)) warnings.push_back(std::move(warning));
  for (auto& warning : io::list_weight_file_warnings(folder)) warnings.push_back(std::move(warning));
  return warnings;
}

bool predicts_masks(const std::filesystem::path& folder) {
  return find_family(read_model_config(folder), folder).get_mask_side != nullptr;
}

bool takes_media(const std::filesystem::path& folder) {
  const Family& family = find_family(read_model_config(folder), folder);
  return family.compute_image_sample_shape != nullptr || family.compute_video_sample_shape != nullptr ||
         family.compute_volume_sample_shape != nullptr;
}

std::vector<std::string> get_default_modules_to_save(const std::filesystem::path& folder, const FrozenParts& frozen) {
  std::vector<std::string> modules;
  if (!std::filesystem::exists(folder / "config.json")) return modules;
  for (const auto& [module, component] : find_family(read_model_config(folder), folder).default_modules_to_save) {
    if (component == nn::Component::kMaskEncoder && frozen.mask_encoder) continue;
    modules.emplace_back(module);
  }
  return modules;
}

}  // namespace vlmtrain::models
