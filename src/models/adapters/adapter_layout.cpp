#include "models/adapters/adapter_layout.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

io::SafetensorsFile open_adapter(const std::filesystem::path& folder) {
  const auto path = folder / kAdapterWeightsName;
  if (!std::filesystem::exists(path)) {
    if (std::filesystem::exists(folder / "adapter_model.bin")) {
      throw data_error("{} has only pickled tensors (adapter_model.bin), which are not read; save it again with peft",
                       folder.string());
    }
    throw data_error("{} is not there; give the folder of an adapter in PEFT's layout", path.string());
  }
  return io::SafetensorsFile(path);
}

std::vector<std::string> adapted_paths(const io::SafetensorsFile& tensors) {
  const std::string end = fmt::format(".{}", kLoraA);
  std::vector<std::string> paths;
  for (const auto& name : tensors.names()) {
    if (!name.starts_with(kAdapterPrefix) || !name.ends_with(end)) continue;
    paths.push_back(name.substr(kAdapterPrefix.size(), name.size() - kAdapterPrefix.size() - end.size()));
  }
  return paths;
}

}  // namespace vlmtrain::models
