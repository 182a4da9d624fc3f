#include "vlmtrain/models/checkpoint_remarks.h"

#include "models/checkpoints/config_keys.h"
#include "models/checkpoints/config_of_weights.h"
#include "models/checkpoints/from_settings.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/read_model_config.h"
#include "models/checkpoints/tied_output.h"
#include "models/registry.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/unread_weights.h"

namespace vlmtrain::models {

std::vector<std::string> checkpoint_remarks(const std::filesystem::path& folder) {
  const std::string file = (folder / "config.json").string();
  const auto config = read_model_config(folder);
  std::vector<std::string> remarks = from_settings(folder, [&] {
    std::vector<std::string> found;
    const Family& family = family_of(config, folder);
    if (config_of_weights(config, family, folder) != config) {
      const auto tensors = find_output_tensors(io::checkpoint_tensor_names(folder));
      found.push_back(
          fmt::format("{}: {} ties {} to {}, but their values differ in the weights; both are loaded, trained and "
                      "saved, and saved checkpoints have {}: false",
                      file, tie_key(config), tensors->output, tensors->embedding, tie_key(config)));
    }
    return found;
  });
  if (const std::string place = find_quantization_config(config); !place.empty()) {
    remarks.push_back(
        fmt::format("{}: {} describes quantized weights, but those in the folder are not; it is not used, "
                    "and not in what is saved",
                    file, place));
  }
  for (auto& remark : unread_config_keys(config, file)) remarks.push_back(std::move(remark));
  for (auto& remark : io::unread_weight_files(folder)) remarks.push_back(std::move(remark));
  return remarks;
}

}  // namespace vlmtrain::models
