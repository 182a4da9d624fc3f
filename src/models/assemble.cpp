#include "vlmtrain/models/assemble.h"

#include <fmt/ranges.h>

#include "models/family.h"
#include "models/presets.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

AssemblyResult assemble_checkpoint(const AssemblyOptions& options, const std::filesystem::path& out) {
  const auto find_assemble_function = [](const std::string& preset) {
    return find_family(load_preset_config(preset), preset).assemble_checkpoint;
  };
  if (const auto assemble_family = find_assemble_function(options.preset)) return assemble_family(options, out);
  auto names = list_presets();
  std::erase_if(names, [&](const std::string& name) { return find_assemble_function(name) == nullptr; });
  throw usage_error(
      "--preset {}: is not assembled from parts; --text-model, --mask-model and --volume-tower are for {}",
      options.preset, fmt::join(names, ", "));
}

bool has_volume_tower(const std::string& preset) {
  return find_family(load_preset_config(preset), preset).compute_volume_sample_shape != nullptr;
}

}  // namespace vlmtrain::models
