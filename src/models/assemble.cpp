#include "vlmtrain/models/assemble.h"

#include <fmt/ranges.h>

#include "models/presets.h"
#include "models/registry.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

Assembly assemble(const AssemblyParts& parts, const std::filesystem::path& out) {
  const auto assemble_of = [](const std::string& preset) {
    return family_of(config_of_preset(preset), preset).assemble;
  };
  if (const auto of_family = assemble_of(parts.preset)) return of_family(parts, out);
  auto names = preset_names();
  std::erase_if(names, [&](const std::string& name) { return assemble_of(name) == nullptr; });
  throw usage_error(
      "--preset {}: is not put together of parts; --text-model, --mask-model and --volume-tower are for {}",
      parts.preset, fmt::join(names, ", "));
}

}  // namespace vlmtrain::models
