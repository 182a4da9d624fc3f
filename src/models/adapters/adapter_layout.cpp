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

}  // namespace vlmtrain::models
